import warnings

import pytest
import torch
from problems import blobs
from torch import nn

from bu_torch import FeatureSpace, LabelRegression, LabelVotes, ParzenUncertainty, Signals
from bu_torch.signals.catalogue import SIGNALS

X, Y = blobs()


def fitted(**kwargs):
    return Signals(n_draws=2, seed=3, **kwargs).fit(X, Y)


def read(signals, seed=0, n_outputs=3):
    torch.manual_seed(seed)
    with torch.no_grad():
        return nn.Linear(4, n_outputs)(signals.perturbed_inputs)


def test_signals_of_the_papers_are_measured_where_they_are_asked_for_and_change_no_other():
    signals, also = fitted(), ("parzen_uncertainty", "omission")
    other = fitted(also=also)
    with pytest.raises(ValueError, match="`state`"):
        Signals(n_draws=2, seed=3, also=also).restore(other.state(), X, Y)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 3)).requires_grad_(False)
    values, predictions = signals.measure(model(signals.perturbed_inputs))
    others, same = other.measure(model(other.perturbed_inputs))
    assert torch.equal(same, predictions)
    assert others == {**values, **{name: others[name] for name in also}}
    parzen = ParzenUncertainty(n_draws=2, seed=3, pairs_at="sample", feature_extractor=signals.boundary.space_name_)
    expected = parzen.fit(X, Y).score(model)
    assert signals.boundary.space_name_ in ("inputs", "metric")
    assert float(others["parzen_uncertainty"]) == pytest.approx(float(expected), abs=1e-6)
    assert float(others["omission"]) == pytest.approx(float(parzen.omission(model)), abs=1e-12)
    logits = model(other.perturbed_inputs)
    logits[-1, 0] = torch.nan  # at a sample itself
    assert all(value.isnan() for value in other.measure(logits).values.values())


def test_each_signal_has_one_entry():
    signals = fitted()
    assert tuple(signals.measure(read(signals)).values) == Signals.NAMES == signals.names
    assert [signal.name for signal in SIGNALS.values()] == list(SIGNALS)
    smaller = {name for name, signal in SIGNALS.items() if not signal.is_larger_better}
    assert smaller == {"prediction_changes", "omission", "expected_log_loss", "expected_brier_score"}


@pytest.mark.parametrize("shape", ["(n, 1)", "(n,)"])
def test_one_column_counts_as_two_classes(shape):
    signals = Signals(n_draws=2, metric="auroc").fit(*blobs(n_classes=2))
    column = read(signals, n_outputs=1)
    values, predictions = signals.measure(column if shape == "(n, 1)" else column[:, 0])
    expected, _ = signals.measure(torch.cat((torch.zeros_like(column), column), dim=1))
    assert torch.equal(predictions, (column[:, 0] > 0).long())
    assert values == expected


def test_more_columns_than_classes_are_empty_classes():
    signals = fitted()
    logits = read(signals)
    values, _ = signals.measure(logits)
    wide, predictions = signals.measure(nn.functional.pad(logits, (0, 2), value=1e6))
    assert predictions.unique().tolist() == [3]
    assert {float(wide[name]) for name in ("expected_accuracy", "vote_agreement")} == {0.0}
    wider, _ = signals.measure(nn.functional.pad(logits, (0, 2), value=-1e6))
    assert list(wider) == list(values)
    assert [float(value) for value in wider.values()] == pytest.approx([float(value) for value in values.values()])


@pytest.mark.filterwarnings("error")
def test_labels_that_the_others_or_the_nearest_do_not_tell_are_warned_of():
    signals = fitted()
    assert signals.vote_skill == LabelVotes().fit(Y, signals.boundary.neighbors).skill_ > 0.5
    assert signals.regression_skill == LabelRegression(seed=3).fit(FeatureSpace().fit(X).transform(X), Y).skill_ > 0.5
    generator = torch.Generator().manual_seed(0)
    inputs, noise = torch.randn(500, 20, generator=generator), torch.randint(2, (500,), generator=generator)
    with pytest.warns(UserWarning, match="no better than chance"):
        signals = Signals(n_draws=1).fit(inputs, noise)
    with pytest.warns(UserWarning, match="`feature_extractor`"):
        again = Signals(n_draws=1).restore(signals.state(), inputs, noise)
    for name in ("vote_skill", "regression_skill"):
        assert getattr(again, name) == getattr(signals, name) < 0.01
    # A narrow class within a wide one: what is nearest is nearly always of the narrow one.
    labels = torch.arange(500) % 2
    ring = torch.randn(500, 20, generator=torch.Generator().manual_seed(0)) * (1 + labels.unsqueeze(1))
    with pytest.warns(UserWarning, match="rely on expected accuracy"):
        signals = Signals(n_draws=1).fit(ring, labels)
    assert signals.vote_skill < 0.01 < 0.1 < signals.regression_skill
    by_radius = Signals(n_draws=1, feature_extractor=lambda x: x.norm(dim=1, keepdim=True)).fit(ring, labels)
    assert by_radius.vote_skill > 0.5


@pytest.mark.parametrize(
    ("n_copied", "offsets", "said"),
    [(100, [0], "100%"), (60, [0], "75%"), (30, [0], None), (100, [1], None), (100, [1, 0, 1], "100%")],
)
def test_samples_that_are_there_twice_are_warned_of(n_copied, offsets, said):
    features, labels = blobs(n=100)
    copies = [(features[:n_copied], (labels[:n_copied] + offset) % 3) for offset in offsets]
    several = [torch.cat(parts) for parts in zip((features, labels), *copies, strict=True)]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        Signals(n_draws=1).fit(*several)
    found = [str(warning.message) for warning in warned if "exact copy" in str(warning.message)]
    assert [message.split()[0] for message in found] == ([said] if said else [])
