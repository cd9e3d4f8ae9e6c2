"""Sentences for the log, made from plain facts."""

from collections.abc import Mapping

from torch import Tensor

from bu_torch.rule.decision import Reason
from bu_torch.run.budget import Plan
from bu_torch.run.history import History
from bu_torch.run.record import Account
from bu_torch.run.settings import Settings
from bu_torch.samples.balance import rare_class
from bu_torch.samples.samples import IGNORED

_SETTLED = 3  # checks
_BELOW_CHANCE = 0.8
_MOST_CLASSES = 1 / 3  # of the samples
_SPACES = {
    "inputs": "the inputs",
    "patches": "features of patches",
    "tokens": "counts of tokens",
    "module": "the network's own features",
}


def why_stopped(checks: History, epoch: int, step: int | None = None) -> str:
    """Name the reason to stop after the last check; "" if there is none."""
    selection, settings, verdict = checks.selection, checks.settings, checks.verdict
    if selection is None or not isinstance(settings, Settings) or not verdict.should_stop:
        return ""
    where = f"in epoch {epoch}" if step is None else f"at step {step} of epoch {epoch}"
    start = f"Stopped {where}: {selection.title}"
    if verdict.reason == Reason.NON_FINITE_METRIC:
        return f"{start} gave a score that is not finite ({checks.last_score})."
    if verdict.reason == Reason.STOPPING_THRESHOLD:
        return f"{start} rose above the stopping threshold {settings.stopping_threshold}."
    wait, compared = verdict.wait, checks.compared
    now, unit = (epoch, "epoch") if step is None else (step, "step")
    then = compared[-1 - wait].get(unit) if wait < len(compared) else None
    since = f" ({now - then} {unit}s)" if then is not None and now - then > wait else ""
    by = f" by more than {settings.min_delta:g}" if settings.min_delta else ""
    return f"{start} did not improve{by} in the last {'check' if wait == 1 else f'{wait} checks'}{since}."


def why_none_kept(checks: History) -> str:
    """Name the reason for which no epoch is kept."""
    if not checks.entries:
        return "no check was made"
    if not checks.compared:
        return "no check counted"
    selection = checks.selection
    if selection is not None and all(selection.score(entry) is None for entry in checks.compared):
        return f"all checks were of epochs before `start_from_epoch={selection.start_from_epoch}`"
    return "no finite check counted"


def cost(account: Account) -> str:
    """Tell what a training has cost beside training itself; of a resumed one, since then.

    At least so much: what a trainer does for its hooks and with what is logged is not known here.
    """
    parts = {"preparation": account.setup_seconds, "checks": account.check_seconds, "saving": account.saving_seconds}
    seconds = account.training_seconds
    share = sum(parts.values()) / max(seconds, 1e-9)
    listed = ", ".join(f"{name} {spent:.1f} s" for name, spent in parts.items() if spent or name != "saving")
    total = sum(round(spent, 1) for spent in parts.values())  # of the parts as they are listed
    start = "Since the run resumed, boundary" if account.has_resumed else "Boundary"
    return (
        f"{start} uncertainty took at least {total:.1f} s ({listed}) beside {seconds:.1f} s of training: {share:.0%}."
    )


def balance(labels: Tensor, weights: Tensor | None, is_sampled: bool, has_class_weight: bool) -> str:
    """Tell how classes count, if a sampler weights samples or a class is rare; else ""."""
    drawn = "Samples count as often as the sampler draws them." if is_sampled else ""
    if has_class_weight:
        return f"{drawn[:-1]}, times the weights of their classes." if drawn else ""
    if (rare := rare_class(labels, weights)) is None:
        return drawn
    label, share = rare
    return (
        f"{drawn}{drawn and ' '}Class {label} makes up {share:.1%} of what training draws, and counts that much in"
        " expected accuracy. To change it: `class_weight='balanced'` counts all classes alike, which may cost accuracy."
    )


def space(name: str, skills: Mapping[str, float]) -> str:
    """Name the space of neighbours and the skills that it was chosen by; "" if there was no choice."""
    if not skills:
        return ""
    listed = ", ".join(f"{one} {skill:.2f}" for one, skill in skills.items())
    return f"Neighbours are found in {_SPACES[name]}: left-out labels are predicted best there ({listed})."


def ignored(n_ignored: int) -> str:
    """Tell how many samples are left out; "" for none."""
    if not n_ignored:
        return ""
    return f"{n_ignored} samples have the label {IGNORED}, which torch's losses ignore: they are left out."


def many_classes(n_samples: int, n_present: int, n_training: int) -> str:
    """Warn of nearly as many classes as samples; "" if there are fewer."""
    if n_present <= _MOST_CLASSES * n_samples:
        return ""
    more = "" if n_samples == n_training else " Use more of them (`max_samples`)."
    return (
        f"The {n_samples} samples in use have {n_present} different labels, so neighbours say little about a label."
        f"{more} If the labels are numbers to predict, the task is a regression, which has no decision boundary: this"
        " is for classifiers."
    )


def bound_in_bytes(wanted: Plan, made: Plan, max_bytes: int | None) -> str:
    """Tell that fewer samples are looked at because all would take more than `max_bytes`; "" if they do not."""
    if made.n_samples >= wanted.n_samples:
        return ""
    return (
        f"Boundary uncertainty holds {made.n_samples} samples and not {wanted.n_samples}, to take no more than"
        f" {max_bytes} bytes. To change it: `max_bytes`."
    )


def worse_than_chance(accuracies: list[float], n_present: int, n_classes: int, n_columns: int) -> str:
    """Warn that the network predicts what the labels contradict, which no training aims at; "" if it does not."""
    last = accuracies[-_SETTLED:]
    is_rising = last[-1] > last[0]  # as that of a network that still learns
    is_too_wide = len(accuracies) == 1 and n_columns > n_classes
    is_settled = len(accuracies) >= _SETTLED and not is_rising
    if not n_present or not (is_too_wide or is_settled) or not all(one < _BELOW_CHANCE / n_present for one in last):
        return ""
    if is_too_wide:
        return (
            f"The network gives {n_columns} columns, and the labels have {n_present} classes. Expected accuracy is"
            f" {last[-1]:.2f} at the first check, worse than chance. If `forward` returns an embedding, let it return"
            " the logits, one for each class; `output_key=` names them in a tuple or a dict."
        )
    return (
        f"Expected accuracy is {last[-1]:.2f} after {len(accuracies)} checks, worse than chance with {n_present}"
        " classes. Does `training_step` change the labels, or does `forward` give something other than one logit for"
        " each class of the labels? If so, the scores do not describe the trained network. Change labels in the"
        " dataset or in `on_after_batch_transfer`."
    )
