"""Token ids: exchanged with those of near texts, in a space that is chosen once and kept when a run resumes."""

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from problems import Classifier, trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopper, BoundaryUncertaintyStopping
from bu_torch.report import read_record

N_TOKENS, LENGTH = 60, 12


def texts(n=160, seed=0):
    """Two subjects: tokens of the first half of the vocabulary mostly, or of the second."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 2
    tokens = torch.randint(0, N_TOKENS // 2, (n, LENGTH), generator=g)
    return tokens + (N_TOKENS // 2) * (torch.rand(n, LENGTH, generator=g) < 0.25 + 0.5 * labels.unsqueeze(1)), labels


class Module(Classifier):
    """What goes into its last layer is the subject, where it is pretrained, or nothing."""

    def __init__(self, is_pretrained=False):
        super().__init__(lr=0.5)
        torch.manual_seed(0)
        self.embedding = nn.Embedding(N_TOKENS, 4)
        self.net = nn.Linear(4, 2)
        with torch.no_grad():
            self.embedding.weight.zero_()
            if is_pretrained:
                self.embedding.weight[N_TOKENS // 2 :, 0] = 1.0

    def forward(self, x):
        assert not x.is_floating_point()
        return self.net(self.embedding(x).mean(dim=1))


def fit(folder, callback, epochs=4, ckpt_path=None, data=None, is_pretrained=False, **kwargs):
    made = trainer(folder, callback, ModelCheckpoint(folder, save_last=True), max_epochs=epochs, **kwargs)
    loader = DataLoader(TensorDataset(*(texts() if data is None else data)), batch_size=40)
    made.fit(Module(is_pretrained), loader, ckpt_path=ckpt_path)
    return callback


@pytest.mark.parametrize("is_pretrained", [False, True])
@pytest.mark.parametrize("space", [None, "tokens", "module"])
def test_a_resumed_run_measures_in_the_space_that_was_chosen(tmp_path, space, is_pretrained):
    def stopping():
        return BoundaryUncertaintyStopping(n_neighbors=20, n_draws=2, perturbation="tokens", feature_extractor=space)

    if space == "module" and not is_pretrained:
        pytest.skip("all features are equal")
    whole = fit(tmp_path / "whole", stopping(), is_pretrained=is_pretrained)
    fit(tmp_path / "part", stopping(), epochs=2, is_pretrained=is_pretrained)
    last = tmp_path / "part" / "last.ckpt"
    resumed = fit(tmp_path / "rest", stopping(), ckpt_path=last, is_pretrained=is_pretrained)
    assert len(whole.history) == 4
    assert resumed.history == whole.history
    assert resumed.best_epoch == whole.best_epoch
    assert resumed.tracker.checks.n_not_compared == 0


@pytest.mark.parametrize("with_cache", [False, True])
def test_the_space_of_tokens_is_kept_through_two_resumes(tmp_path, with_cache):
    """The network knows the labels by then, and must not be chosen."""
    settings = {"n_neighbors": 20, "n_draws": 2, "perturbation": "tokens"}
    settings["cache"] = tmp_path / "cache.npz" if with_cache else None
    whole = fit(tmp_path / "whole", BoundaryUncertaintyStopping(**settings), epochs=6)
    fit(tmp_path / "first", BoundaryUncertaintyStopping(**settings), epochs=2)
    first, second = (tmp_path / name / "last.ckpt" for name in ("first", "second"))
    fit(tmp_path / "second", BoundaryUncertaintyStopping(**settings), epochs=4, ckpt_path=first)
    resumed = fit(tmp_path / "third", BoundaryUncertaintyStopping(**settings), epochs=6, ckpt_path=second)
    assert resumed.history == whole.history
    assert resumed.tracker.checks.n_not_compared == 0


@pytest.mark.parametrize(
    ("is_pretrained", "found", "name"),
    [(False, "counts of tokens", "tokens"), (True, "the network's own features", "module")],
)
def test_the_log_and_the_record_say_what_was_chosen(tmp_path, caplog, is_pretrained, found, name):
    callback = BoundaryUncertaintyMonitor(n_neighbors=20, perturbation="tokens")
    with caplog.at_level("INFO", logger="lightning.pytorch"):
        fit(tmp_path, callback, epochs=1, is_pretrained=is_pretrained)
    assert f"Neighbours are found among {found}: left-out labels are predicted best there (tokens" in caplog.text
    data = read_record(callback.record_path).data
    assert (data["space"], data["perturbation"]) == (name, "tokens")


def test_what_is_learnt_is_measured(tmp_path):
    """The subject is learnt, and expected accuracy rises from chance."""
    callback = fit(tmp_path, BoundaryUncertaintyMonitor(n_neighbors=20, perturbation="tokens"), epochs=15)
    assert callback.history[-1]["expected_accuracy"] > callback.history[0]["expected_accuracy"] + 0.1
    assert callback.history[-1]["label_agreement"] > 0.7


def test_training_is_the_same_to_the_bit_without_the_callback(tmp_path):
    weights = []
    for callbacks in ([], [BoundaryUncertaintyMonitor(n_neighbors=20, perturbation="tokens")]):
        module = Module()
        trainer(tmp_path, *callbacks, max_epochs=2).fit(module, DataLoader(TensorDataset(*texts()), 40, shuffle=True))
        weights.append(module.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_reference_stays_integers(tmp_path):
    settings = {"n_neighbors": 20, "n_draws": 2, "perturbation": "tokens"}
    read = fit(tmp_path / "read", BoundaryUncertaintyMonitor(**settings))
    given = fit(tmp_path / "given", BoundaryUncertaintyMonitor(reference=texts(), **settings))
    assert given.history == read.history


def test_the_loop_measures_and_goes_on_alike():
    settings = {"n_neighbors": 20, "n_draws": 2, "perturbation": "tokens"}
    module = Module(is_pretrained=True)
    stopper = BoundaryUncertaintyStopper(*texts(), **settings)
    stopper.check(module)
    again = BoundaryUncertaintyStopper(*texts(), **settings)
    again.load_state_dict(stopper.state_dict())
    again.check(module)
    assert again.history[0] == stopper.history[0]
    assert again._tracker.checks.is_comparable
    assert torch.equal(again._tracker.groundwork.perturbed_inputs, stopper._tracker.groundwork.perturbed_inputs)


def test_samples_that_are_no_tokens_are_refused(tmp_path):
    tokens, labels = texts()
    with pytest.raises(MisconfigurationException, match=r"must be token ids, integers .*, got torch.float32"):
        fit(tmp_path, BoundaryUncertaintyMonitor(n_neighbors=20, perturbation="tokens"), data=(tokens.float(), labels))
    with pytest.raises(MisconfigurationException, match="`perturbation` must be one of"):
        BoundaryUncertaintyMonitor(perturbation="words")


def test_token_ids_that_are_moved_as_numbers_are_said(tmp_path):
    """A `forward` that rounds them would hide it."""

    class Rounding(Module):
        def forward(self, x):
            return super().forward(x.long().clamp(0, N_TOKENS - 1))

    loader = DataLoader(TensorDataset(*texts()), batch_size=40)
    with pytest.warns(UserWarning, match="an `nn.Embedding`. If they are token ids, pass `perturbation='tokens'`"):
        trainer(tmp_path, BoundaryUncertaintyMonitor(n_neighbors=20), max_epochs=1).fit(Rounding(), loader)
