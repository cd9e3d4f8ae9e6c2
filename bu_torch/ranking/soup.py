"""Averages of checkpoints ("soups"), made only as far as the training samples speak for them."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bu_torch.internal.files import whole_file
from bu_torch.internal.inputs import check_integer
from bu_torch.ranking.checkpoints import Checkpoint, load_checkpoint, module_with_weights
from bu_torch.ranking.rank import Judge, Paths, find_checkpoints, fit_signals
from bu_torch.ranking.ranking import Candidate, Ranking
from bu_torch.rule.rules import DEFAULT_RULE, Rule, RuleName
from bu_torch.signals.measuring import Signals

# Of a Lightning checkpoint, what does not tell of the one epoch that it was saved in.
_KEPT_ENTRIES = re.compile(r"pytorch-lightning_version|hparams_type|(datamodule_)?(hyper_parameters|hparams_name)")


class Soup(NamedTuple):
    """A uniform average of checkpoints, and what it was chosen among.

    Args:
        state_dict: The averaged weights, of the best checkpoint's dtypes.
        members: Averaged candidates, the best first; only one if no average was at least as good.
        signals: Signals of the average, by name.
        gain: Gain in the rule's score over the best checkpoint, >= 0.
        ranking: All candidates.
        content: Facts about the module in the best checkpoint's file, to be saved again.
    """

    state_dict: dict[str, Any]
    members: tuple[Candidate, ...]
    signals: dict[str, float]
    gain: float
    ranking: Ranking
    content: dict[str, Any]

    def save(self, path: str | Path) -> None:
        """Write the average as the best checkpoint was written: with its hyperparameters, or as a bare state_dict.

        `torch.load(path, weights_only=True)` and Lightning's `load_from_checkpoint` read it; no state of an optimiser
        or a callback is in it, to resume from.

        Raises:
            FileExistsError: If there is a file already.
            ValueError: If the name ends in `.safetensors`.
        """
        path = Path(path)
        if path.exists():
            raise FileExistsError(f"`{path}` already exists.")
        if path.suffix == ".safetensors":
            raise ValueError(f"`path` must name a file for `torch.save`, got `{path}`.")
        saved = self.state_dict
        if self.content:
            best = self.members[0]
            saved = {**self.content, "state_dict": saved, "epoch": best.epoch, "global_step": best.step}
            saved["averaged"] = [member.name for member in self.members]
        with whole_file(path) as part:
            torch.save(saved, part)


def average_checkpoints(paths: Paths, *, weights_only: bool = True) -> dict[str, Any]:
    """The uniform average of the weights in several files: the uniform soup of Wortsman et al. (2022).

    Floating-point and complex tensors are averaged in double precision, BatchNorm's means and variances too; whole
    numbers (its count of batches) are those of the first. The checkpoints should be of one run, or fine-tuned from the
    same weights: averages of runs that started apart are mostly useless.

    Args:
        paths: As in `rank_checkpoints`.
        weights_only: As in `load_checkpoint`.

    Returns:
        A `state_dict` on the CPU, of the first file's dtypes.

    Raises:
        FileNotFoundError: As in `rank_checkpoints`.
        ValueError: If a file cannot be read, or the files do not hold tensors of the same names and shapes.
    """
    path, *others = find_checkpoints(paths)
    first = load_checkpoint(path, weights_only=weights_only)
    sums = _in_double(first)
    for other in others:
        sums = _added(sums, first, load_checkpoint(other, weights_only=weights_only))
    return _average(sums, first, 1 + len(others)).state_dict


def greedy_soup(
    paths: Paths,
    module: nn.Module | Callable[..., nn.Module],
    dataset: Any,
    *,
    rule: RuleName | Rule = DEFAULT_RULE,
    n_best: int | None = None,
    signals: Signals | None = None,
    weights_only: bool = True,
    batch_size: int = 4096,
    device: torch.device | str | None = None,
) -> Soup:
    """Average the best checkpoints as far as the rule says that it helps: a greedy soup that needs no held-out data.

    The recipe of Wortsman et al. (2022), "Model soups", section 2, with the rule in place of held-out accuracy: from
    the best checkpoint on, each is added to the average (`average_checkpoints`) if that becomes no worse by it; files
    with the same weights count once. While the error of a run still falls, its last epoch is better than any average.

    Args:
        paths: As in `rank_checkpoints`.
        module: As in `rank_checkpoints`.
        dataset: As in `rank_checkpoints`.
        rule: As in `rank_checkpoints`.
        n_best: Try so many of the best, >= 1; None for all.
        signals: As in `rank_checkpoints`.
        weights_only: As in `load_checkpoint`.
        batch_size: As in `rank_checkpoints`.
        device: As in `rank_checkpoints`.

    Returns:
        The soup. Its only member is the best checkpoint if no average was at least as good.

    Raises:
        ValueError: If checkpoints do not hold tensors of the same names and shapes, or no logits are finite; this and
            other errors as in `rank_checkpoints`.
    """
    if n_best is not None:
        check_integer("n_best", n_best, 1)
    judge, files = Judge(rule, signals, batch_size), find_checkpoints(paths)
    fit_signals(judge.signals, dataset)
    ranking = judge.rank_files(files, module, weights_only, device)
    candidates = [candidate for candidate in ranking if candidate.score == candidate.score]
    if not candidates:
        raise ValueError("`paths` must hold a checkpoint whose logits are finite, got none.")
    best = candidates[0]
    first = load_checkpoint(str(best.path), weights_only=weights_only)
    sums, members, measured, seen = _in_double(first), [best], best.signals, {_fingerprint(first)}
    for candidate in candidates[1:n_best]:
        checkpoint = load_checkpoint(str(candidate.path), weights_only=weights_only)
        if (fingerprint := _fingerprint(checkpoint)) in seen:
            continue
        seen.add(fingerprint)
        trial = _added(sums, first, checkpoint)
        with module_with_weights(module, _average(trial, first, len(members) + 1), device) as loaded_module:
            values = judge.measure(loaded_module, f"the average with {candidate.name}")
        if judge.score(values) >= judge.score(measured):
            sums, members, measured = trial, [*members, candidate], values
    gain = judge.score(measured) - judge.score(best.signals)
    content = {name: value for name, value in first.content.items() if _KEPT_ENTRIES.fullmatch(str(name))}
    state_dict = _average(sums, first, len(members)).state_dict
    return Soup(state_dict, tuple(members), measured, gain, ranking, content)


def _in_double(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Weights to be summed; `torch.optim.swa_utils.AveragedModel` would average whole numbers too."""
    return {
        name: value.to(torch.complex128 if value.is_complex() else torch.float64)
        for name, value in checkpoint.state_dict.items()
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
    }


def _added(sums: dict[str, Tensor], first: Checkpoint, checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The sums with a checkpoint of the same names and shapes as the first; those given stay as they are."""
    shapes, others = (
        {name: tuple(getattr(value, "shape", ())) for name, value in one.state_dict.items()}
        for one in (first, checkpoint)
    )
    if shapes != others:
        name = min(name for name in shapes | others if shapes.get(name) != others.get(name))
        raise ValueError(
            f"`paths` must hold tensors of the same names and shapes to be averaged: {name} is"
            f" {shapes.get(name, 'missing')} in `{first.path}`, {others.get(name, 'missing')} in `{checkpoint.path}`."
        )
    try:
        return {name: total + checkpoint.state_dict[name] for name, total in sums.items()}
    except RuntimeError as error:  # of a kind that torch does not add
        raise ValueError(f"`{checkpoint.path}` holds weights that cannot be averaged: {error}") from error


def _average(sums: dict[str, Tensor], first: Checkpoint, n_members: int) -> Checkpoint:
    """The first checkpoint with the average in place of its weights."""
    averages = {name: (total / n_members).to(first.state_dict[name].dtype) for name, total in sums.items()}
    return first._replace(state_dict={**first.state_dict, **averages})


def _fingerprint(checkpoint: Checkpoint) -> str:
    """Digest of the weights: a run may save the same ones in several files."""
    digest = hashlib.sha256()
    for name, value in sorted(checkpoint.state_dict.items()):
        if isinstance(value, Tensor):
            digest.update(repr((name, value.dtype, tuple(value.shape))).encode())
            digest.update(value.detach().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
