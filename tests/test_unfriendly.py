"""Bad and odd samples by every way in that needs no trainer: handled to the same numbers, or refused by name."""

import numpy as np
import pandas as pd
import pytest
import torch
from problems import blobs
from torch import nn

from bu_torch import BoundaryUncertainty, NeighborGraph, PrototypeClassifier, Signals, TrustScore, perturb
from bu_torch.callbacks import BoundaryUncertaintyStopper
from bu_torch.internal.inputs import as_features, as_labels
from bu_torch.internal.logits import read_logits

X, Y = blobs()
M = 10


def linear(x):
    """Three classes, of inputs of any scale."""
    x = torch.as_tensor(x).flatten(1).double()
    return (x[:, :3] - x[:, :3].mean()) / x.abs().max()


def signals_of(x, y):
    signals = Signals(M, 2).fit(x, y)
    return [float(value) for value in signals.measure(linear(signals.perturbed_inputs)).values.values()]


def stopper_of(x, y):
    return BoundaryUncertaintyStopper(x, y, n_neighbors=M, n_draws=2)


def stopped(x, y):
    stopper = stopper_of(x, y)
    stopper.check(linear)
    return [value for name, value in stopper.history[0].items() if name not in ("epoch", "replacements")]


OF_SAMPLES = {
    "BoundaryUncertainty": lambda x, y: [float(BoundaryUncertainty(M, 2).fit(x, y).score(linear))],
    "Signals": signals_of,
    "BoundaryUncertaintyStopper": stopped,
}
OF_FEATURES = {
    "NeighborGraph": lambda x, y: NeighborGraph(M).fit(x).neighbors.tolist(),
    "PrototypeClassifier": lambda x, y: PrototypeClassifier().fit(x, y).top_pairs(x).tolist(),
    "TrustScore": lambda x, y: TrustScore().fit(x, y).class_distances(x).argsort(dim=1, stable=True).tolist(),
}
EVERY_WAY = OF_SAMPLES | OF_FEATURES


def ways(these):
    return pytest.mark.parametrize("way", these.values(), ids=these)


KINDS_OF_THE_SAME = {
    "float64": (X.double(), Y),
    "arrays": (X.numpy(), Y.numpy()),
    "lists": (X.tolist(), Y.tolist()),
    "a list of arrays": (list(X.numpy()), Y.tolist()),
    "frames": (pd.DataFrame(X.numpy()), pd.Series(Y.numpy(), index=range(500, 620))),
    "frames that may have gaps": (pd.DataFrame(X.numpy()).astype("Float32"), pd.Series(Y.numpy(), dtype="Int8")),
    "a frame of labels": (pd.DataFrame(X.numpy()), pd.DataFrame({"y": Y.numpy()})),
    "categories of numbers": (pd.DataFrame(X.numpy()), pd.Series(Y.numpy(), dtype="category")),
    "negative strides": (X.numpy()[::-1].copy()[::-1], Y.numpy()[::-1].copy()[::-1]),
    "in columns": (np.asfortranarray(X.numpy()), Y),
    "transposed": (X.T.contiguous().T, Y),
    "of the other byte order": (X.numpy().astype(">f4"), Y.numpy().astype(">i4")),
    "read-only": (np.broadcast_to(X.numpy(), X.shape), np.broadcast_to(Y.numpy(), Y.shape)),
    "a mask that hides nothing": (np.ma.masked_array(X.numpy(), mask=False), Y),
    "with a gradient": (X.clone().requires_grad_(), Y.float().requires_grad_()),
    "int8 labels": (X, Y.to(torch.int8)),
    "uint8 labels": (X, Y.numpy().astype(np.uint8)),
    "a column of labels": (X, Y.unsqueeze(1)),
}


@pytest.mark.parametrize(("features", "labels"), KINDS_OF_THE_SAME.values(), ids=KINDS_OF_THE_SAME)
def test_the_kind_of_tensor_or_array_does_not_matter(features, labels, recwarn):
    found, classes = as_features(features), as_labels(labels, 120)
    assert found.dtype == (torch.float64 if getattr(features, "dtype", None) == torch.float64 else torch.float32)
    assert torch.equal(found, X.to(found.dtype))
    assert found.is_contiguous()
    assert not found.requires_grad
    assert classes.dtype == torch.int64
    assert torch.equal(classes, Y)
    assert not [str(warning.message) for warning in recwarn if "NumPy" in str(warning.message)]


def test_an_array_of_one_element_may_be_backwards():
    assert as_features(np.ones((1, 1))[::-1, ::-1]).tolist() == [[1.0]]


@ways(EVERY_WAY)
def test_every_way_in_takes_them(way):
    expected = way(X, Y)
    for kind in ("frames", "frames that may have gaps", "with a gradient"):
        assert way(*KINDS_OF_THE_SAME[kind]) == expected


@pytest.mark.parametrize("dtype", ["int16", "Int64", "Float64", "bool", "boolean", "category", pd.SparseDtype("int8")])
def test_columns_of_a_frame_may_be_of_different_types(dtype):
    found = as_features(framed([0, 1] * 60, dtype))
    assert torch.equal(found, torch.stack((X[:, 0], torch.arange(120.0) % 2), dim=1).to(found.dtype))
    assert torch.equal(as_labels(pd.Series([0, 1] * 60, dtype=dtype), 120), torch.arange(120) % 2)


@ways(EVERY_WAY)
@pytest.mark.parametrize(("exponent", "dtype"), [(100, torch.float32), (-90, torch.float32), (-664, torch.float64)])
def test_a_power_of_two_as_the_unit_changes_nothing_to_the_bit(way, exponent, dtype):
    assert way(X.to(dtype) * 2.0**exponent, Y) == way(X.to(dtype), Y)


@ways(OF_FEATURES)
def test_the_largest_numbers_are_compared_too(way):
    assert way(X.double() * 2.0**1000, Y) == way(X.double(), Y)


def test_features_of_very_different_scales_are_standardised():
    scales = torch.tensor([2.0**-600, 1.0, 2.0**600, 2.0**900], dtype=torch.float64)
    apart, together = (BoundaryUncertainty(M).fit(X.double() * factors, Y) for factors in (scales, 1))
    assert torch.equal(apart.neighbors, together.neighbors)
    assert torch.equal(apart.perturbed_inputs / scales, together.perturbed_inputs)


@ways(OF_SAMPLES)
def test_no_room_to_move_is_refused(way):
    x = X / X.abs().max() * 3.4e38
    with pytest.raises(ValueError, match=r"`features` must be small enough to be perturbed .*float32, got .*3\.4e\+38"):
        way(x, Y)
    with pytest.raises(ValueError, match="`features` must be small enough to be perturbed"):
        perturb(x, x.norm(dim=1).clamp(max=3e38))


def test_integers_that_float32_does_not_tell_apart_become_float64():
    x = (X * 100).long()
    far = NeighborGraph(M).fit(x + 10**12)
    assert far.nearest_distance.dtype == torch.float64
    assert torch.equal(far.neighbors, NeighborGraph(M).fit(x).neighbors)
    assert NeighborGraph(M).fit(x).nearest_distance.dtype == torch.float32
    images = (X * 20 + 100).clamp(0, 255).byte().view(120, 1, 2, 2)
    assert BoundaryUncertainty(M).fit(images, Y).perturbed_inputs.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    x = X.to(dtype)
    assert as_features(x).dtype == torch.float32
    assert signals_of(x, Y) == signals_of(x.float(), Y)


CONSTANT = torch.cat((X, torch.full((120, 1), 0.1)), dim=1)


class TestDegenerateSamples:
    @pytest.mark.filterwarnings("ignore:.*have an exact copy with the same label")
    @pytest.mark.parametrize("x", [torch.ones(120, 4), torch.eye(3)[Y], CONSTANT], ids=["all", "a class", "a feature"])
    @ways(OF_SAMPLES)
    def test_equal_samples_and_a_constant_feature_are_measured(self, way, x):
        assert np.isfinite(way(x, Y)).all()

    @pytest.mark.filterwarnings("ignore:.*have an exact copy with the same label")
    def test_one_distinct_sample_a_class(self):
        fitted = BoundaryUncertainty(M).fit(torch.eye(3)[Y], Y)
        moved = (fitted.standardize(fitted.perturbed_inputs[0]) - fitted.standardize(torch.eye(3)[Y])).norm(dim=1)
        nearest = torch.pdist(fitted.standardize(torch.eye(3))).min()
        torch.testing.assert_close(moved, nearest.expand(120))

    def test_a_constant_feature(self):
        fitted = BoundaryUncertainty(M).fit(CONSTANT, Y)
        assert torch.equal(fitted.neighbors, BoundaryUncertainty(M).fit(X, Y).neighbors)
        assert (fitted.perturbed_inputs[..., 4] == CONSTANT[0, 4]).all()
        assert fitted.scale_[4] == 1

    @ways(EVERY_WAY)
    def test_a_class_of_one_sample(self, way):
        labels = torch.where(torch.arange(120) == 5, 2, Y % 2)
        assert len(way(X, labels)) > 0

    def test_absent_classes_are_never_near(self):
        labels, logits = (Y > 0).long(), linear(X)[:, :2]
        signals, two = Signals(M, 1).fit(X, labels * 7), Signals(M, 1).fit(X, labels)
        assert signals.class_distances[:, 1:7].isinf().all()
        wide = torch.full((120, 8), -1e3, dtype=logits.dtype)
        wide[:, [0, 7]] = logits
        expected = two.measure(logits).values
        for name, value in signals.measure(wide).values.items():
            torch.testing.assert_close(value, expected[name])


BAD_LABELS = {
    "negative": (Y - 1, r"classes 0, 1, ..., got -1: if they are classes, number them"),
    "fractional": (Y + 0.5, r"integer classes, got fractional torch\.float32 values \(a regression\?\)"),
    "NaN": (torch.where(Y == 1, torch.nan, Y.float()), "integer classes, got NaN or infinity in 40 of 120"),
    "missing in a column": (
        pd.Series([0, 1, None] * 40, dtype="Int64", name="churn"),
        "40 among 120 in column 'churn'",
    ),
    "numbers that are no classes": (Y * 10**9, "below 100000, got 2000000000: if they are classes, number them"),
    "unsigned beyond int64": (Y.numpy().astype("u8") * (2**63 - 1), r"below 100000, got 1\.84467[0-9]*e\+19"),
    "far below 0": (Y * -1e30, r"classes 0, 1, ..., got -2[0-9.]*e\+30: if they are classes, number them"),
    "integers of more than 64 bits": ([2**64] * 120, "hold numbers of at most 64 bits, got a larger one"),
    "one-hot": (torch.eye(3)[Y].long(), r"got \(120, 3\)\. For one-hot or smoothed labels, pass `labels.argmax"),
    "smoothed": (torch.eye(3)[Y] * 0.9 + 0.1 / 3, r"pass `labels.argmax\(dim=1\)`"),
    "several a sample": (torch.ones(120, 3).long(), r"got \(120, 3\)\. A sample must have one label"),
    "one a pixel": (Y.view(-1, 1, 1).expand(-1, 2, 2), r"one class a sample, shape \(N,\), got \(120, 2, 2\)"),
    "too few": (Y[:-5], "one entry a sample, 120, got 115"),
    "strings": (np.array(list("abc") * 40), "an array of numbers, got ndarray of <U1. Encode it .*`LabelEncoder`"),
    "a column of strings": (pd.Series(list("abc") * 40), r"numbers, got text \(dtype .*`LabelEncoder`"),
    "categories": (pd.Series(list("abc") * 40, dtype="category", name="kind"), "text in column 'kind'.*`LabelEncoder`"),
    "sparse": (Y.to_sparse(), "a dense tensor that holds its values, got a tensor of layout sparse_coo"),
}


@pytest.mark.parametrize(("labels", "message"), BAD_LABELS.values(), ids=BAD_LABELS)
def test_labels_that_are_no_classes_are_refused(labels, message):
    with pytest.raises((TypeError, ValueError), match=f"^`labels` must .*(?:{message})"):
        as_labels(labels, 120)


def framed(values, dtype=None):
    """A frame with these values in one of its columns."""
    return pd.DataFrame({"age": X[:, 0].numpy(), "odd": pd.Series(values, dtype=dtype)})


BAD_VALUES = X.clone()
BAD_VALUES[3, 1], BAD_VALUES[7, 0], BAD_VALUES[9, 0] = torch.nan, torch.inf, -torch.inf
BAD_FEATURES = {
    "NaN and infinity in a few": (BAD_VALUES, "finite, got NaN or infinity in 3 of 120 samples"),
    "one number a sample": (X[:, 0], r"shape \(N, d\), .*got \(120,\).*a column, \(N, 1\)"),
    "no features": (X[:, :0], r"shape \(N, d\), .*got \(120, 0\)"),
    "complex": (X.to(torch.complex64), r"real, got torch\.complex64"),
    "strings": (["a"] * 120, "an array of numbers, got list"),
    "objects": (X.numpy().astype(object), "an array of numbers, got ndarray of object"),
    "text in a matrix": (np.full((120, 2), "a"), "numbers, got ndarray of <U1. Encode it .*`OneHotEncoder`"),
    "a frame of text": (framed([None, "x"] * 60), "got text in column 'odd' .*`OneHotEncoder`"),
    "a frame of dates": (framed(pd.date_range("2020", periods=120)), "got dates or times in column 'odd'.* Count"),
    "a frame of objects": (framed([1, 2] * 60, object), r"got objects in column 'odd'.*`astype\(float\)`"),
    "a frame of gaps": (framed([None, 1] * 60, "Int64"), "missing values, got 60 among 120 in column 'odd'. Impute"),
    "a frame of NaN": (framed([np.nan, 1] * 60), "missing values, got 60 among 120 in column 'odd'.*`SimpleImputer`"),
    "a frame of no columns": (pd.DataFrame(index=range(120)), r"shape \(N, d\), .*got \(120, 0\)"),
    "masked": (np.ma.masked_array(X.numpy(), mask=X.numpy() > 3), "an array of numbers, got MaskedArray"),
    "sparse": (X.to_sparse(), "dense tensor that holds its values, got a tensor of layout sparse_coo"),
    "without values": (X.to("meta"), "dense tensor that holds its values, got .* on meta"),
}


@pytest.mark.parametrize(("features", "message"), BAD_FEATURES.values(), ids=BAD_FEATURES)
def test_features_that_are_no_numbers_are_refused(features, message):
    with pytest.raises((TypeError, ValueError), match=f"^`features` must .*{message}"):
        as_features(features)


@ways(EVERY_WAY)
@pytest.mark.parametrize("kind", ["NaN and infinity in a few", "strings", "a frame of text", "a frame of gaps"])
def test_nor_are_they_taken_by_any_way_in(way, kind):
    features, message = BAD_FEATURES[kind]
    with pytest.raises((TypeError, ValueError), match=f"`(features|inputs|dataset)` must .*{message}"):
        way(features, Y)


class TestOutputs:
    """What a network gives."""

    fitted, signals = BoundaryUncertainty(M, 2).fit(X, Y), Signals(M, 2).fit(X, Y)

    @pytest.mark.parametrize(
        ("output", "error", "message"),
        [
            (lambda z: z[:, :, None, None], ValueError, r"`logits` must have shape \(N, J\) .*got \(240, 3, 1, 1\)"),
            (lambda z: z[:, :2], ValueError, "`logits` must have at least 3 columns"),
            (lambda z: z[:, 0], ValueError, "`logits` must have at least 3 columns, .*got 1"),
            (lambda z: z[:, :0], ValueError, r"`logits` must have shape \(N, J\) .*got \(240, 0\)"),
            (lambda z: z.sum(), ValueError, r"`logits` must have shape \(N, J\) .*got \(\)"),
            (lambda z: torch.cat((z, z)), ValueError, "`model` must give one row of logits an input, 240, got 480"),
            (lambda z: z.argmax(dim=1), TypeError, r"`logits` must be a floating-point tensor, got torch\.int64"),
            (lambda z: z.to(torch.complex64), TypeError, r"floating-point tensor, got torch\.complex64"),
            (lambda z: z.to_sparse(), TypeError, r"`model` must give dense logits, got .*sparse_coo"),
            (lambda z: None, TypeError, r"`model` must give a tensor or an array of logits \(n, J\).*got NoneType"),
            (lambda z: {"out": z}, TypeError, r"or an output with `logits`, got dict .*`output_key=`"),
            (lambda z: (z, z), TypeError, r"or an output with `logits`, got tuple of 2.*`output_key=`"),
        ],
    )
    def test_what_is_no_logits_is_refused_by_every_way_in(self, output, error, message):
        for call in (self.fitted.score, stopper_of(X, Y).check):
            with pytest.raises(error, match=message):
                call(lambda x: output(linear(x)))

    @pytest.mark.parametrize("n_outputs", [1, 2, 3])
    def test_a_last_batch_of_one_may_lose_its_dimension(self, n_outputs):
        """120 rows in batches of 119 leave one."""
        labels = Y.clamp(max=max(n_outputs - 1, 1))

        def whole(x):
            return linear(x)[:, :n_outputs] if n_outputs > 1 else linear(x)[:, 1:2] - linear(x)[:, :1]

        signals = Signals(M, 1).fit(X, labels)
        models = (lambda x: whole(x).squeeze(), whole)
        measured = [signals.measure(read_logits(model, signals.perturbed, 119)).values for model in models]
        squeezed, expected = ({name: float(one) for name, one in values.items()} for values in measured)
        assert np.isfinite(list(expected.values())).all()
        assert squeezed == pytest.approx(expected)

    def test_batches_of_unequal_width_are_refused(self):
        def model(x):
            return linear(X)[: len(x)] if len(x) == 119 else torch.zeros(len(x), 5)

        with pytest.raises(ValueError, match=r"`model` must give the same number of logits for each input"):
            read_logits(model, X, 119)

    def test_equal_logits_are_all_on_the_boundary(self):
        values = signals_of(X, Y)
        assert values != [0.0] * len(values)
        local = 2 * self.fitted.probabilities.flatten(0, 1)[:, :2].amin(dim=1).double()  # of equal logits the first two
        torch.testing.assert_close(self.fitted.score(lambda x: torch.zeros(len(x), 3)), local.mean())

    def test_a_module_without_parameters(self):
        assert 0 <= self.fitted.score(nn.Identity()) <= 1
        assert BoundaryUncertaintyStopper(X, Y, n_neighbors=M).check(nn.Identity()) is False


@pytest.mark.gpu
@pytest.mark.parametrize("are_labels_there", [True, False])
@ways(OF_SAMPLES)
def test_labels_on_another_device(way, are_labels_there, accelerator):
    features, labels = (X, Y.to(accelerator)) if are_labels_there else (X.to(accelerator), Y)
    assert way(features, labels) == pytest.approx(way(features, labels.to(features.device)))
