"""Weights of classes and samples, beside those of scikit-learn, and subsets in which each class keeps its share."""

from collections import UserList

import numpy as np
import pandas as pd
import pytest
import torch
from problems import blobs, weights_at_random
from readable import WHOLE, Made, X, Y
from sklearn.utils.class_weight import compute_sample_weight
from torch.utils.data import DataLoader, Subset, TensorDataset

from bu_torch import BoundaryUncertainty
from bu_torch.samples.reading import read_samples
from bu_torch.samples.samples import as_weights, check_class_weight, stratified_rows, weights_of
from bu_torch.signals.measuring import rare_class

RARE = torch.tensor([0] * 30 + [1] * 9 + [2] * 21)
OWN = weights_at_random(60).numpy()


class TestClassWeight:
    @pytest.mark.parametrize(
        ("given", "own"),
        [("balanced", None), ({0: 0.5, 1: 7.0, 2: 2.0}, None), ({1: 3.0}, None), ({0: 2.0, 1: 5.0}, OWN)],
    )
    def test_is_that_of_scikit_learn_times_what_samples_weigh(self, given, own):
        expected = compute_sample_weight(given, RARE.numpy()) * (1 if own is None else own)
        found = weights_of(RARE, check_class_weight(given), own)
        assert found.dtype == torch.float64
        np.testing.assert_allclose(found, expected / expected.mean(), rtol=1e-12)

    def test_balanced_makes_all_classes_weigh_the_same_whatever_the_samples_weigh(self):
        found = weights_of(RARE, "balanced", OWN)
        np.testing.assert_allclose(torch.bincount(RARE, found), 20.0, rtol=1e-12)
        assert float(found[1] / found[0]) == pytest.approx(OWN[1] / OWN[0])  # within a class they stay

    @pytest.mark.parametrize("kind", [list, tuple, UserList, torch.tensor, np.array])
    def test_a_list_has_one_for_each_class_as_losses_have(self, kind):
        listed = check_class_weight(kind([0.5, 7.0, 2.0]))
        assert listed == [0.5, 7.0, 2.0]
        assert torch.equal(weights_of(RARE, listed), weights_of(RARE, dict(enumerate(listed))))

    def test_the_order_of_a_dict_does_not_matter(self):
        series = pd.Series([1.0, 3.0], index=[2, 0])  # as `1 / labels.value_counts()` has classes in its index
        found = {repr(check_class_weight(given)) for given in ({2: 1.0, 0: 3}, {0: 3.0, 2: 1}, series)}
        assert found == {"{0: 3.0, 2: 1.0}"}


@pytest.mark.parametrize("given", [[1, 2, 3], np.array([1, 2, 3], dtype=np.uint8), torch.tensor([1.0, 2.0, 3.0])])
def test_sample_weights_are_numbers_of_any_kind(given):
    assert as_weights(given, 3).tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("shares", "weights", "expected"),
    [
        ([76, 24], None, (1, 0.24)),
        ([74, 26], None, None),
        ([74, 26], [1.0, 0.5], (1, 13 / 87)),
        ([95, 5], [1.0, 19.0], None),
        ([30, 30, 0, 3], None, (3, 3 / 63)),
    ],
)
def test_a_rare_class_has_less_than_half_of_an_equal_share(shares, weights, expected):
    labels = torch.repeat_interleave(torch.arange(len(shares)), torch.tensor(shares))
    found = rare_class(labels, None if weights is None else torch.tensor(weights, dtype=torch.float64)[labels])
    assert found == (None if expected is None else (expected[0], pytest.approx(expected[1])))


def test_weights_go_where_the_estimator_goes_and_a_second_fit_forgets_them(device):
    fitted = BoundaryUncertainty(n_neighbors=10, n_draws=1).fit(*blobs(60), weights_at_random(60)).to(device)
    assert fitted.weights.device.type == device.type
    assert fitted.fit(*blobs(60)).weights is None


class Named(Made):
    """Labels known without reading, as torchvision's datasets have them."""

    targets = Y.tolist()
    classes = ("cat", "dog", "ship")


NO_TARGETS = (["a"] * 120, [0.5] * 120, [1], property(lambda self: 1 / 0))


class TestSubset:
    labels = torch.tensor([0] * 80 + [1] * 39 + [2])

    def test_the_same_is_drawn_wherever_the_samples_are(self):
        whole = TensorDataset(X, self.labels)
        rows = stratified_rows(120, 30, 3, self.labels)
        for source in ((X, self.labels), whole, DataLoader(whole, 7, shuffle=True), Subset(whole, range(120))):
            samples = read_samples(source, 30, seed=3)
            assert torch.equal(samples.rows, rows)
            assert torch.equal(samples.inputs, X[rows])
            assert torch.equal(samples.labels, self.labels[rows])
            assert samples.n_training == 120
        assert self.labels[rows].bincount().tolist() in ([20, 9, 1], [19, 10, 1])
        assert not torch.equal(read_samples(whole, 30, seed=4).rows, rows)

    @pytest.mark.parametrize(
        ("dataset", "keys", "labels"),
        [
            (TensorDataset(Y, X, torch.rand(120)), {"input_key": 1, "label_key": 0}, Y),
            (Subset(Named(), range(120)), {}, Y),
            (Subset(Subset(WHOLE, range(119, -1, -1)), range(119, -1, -1)), {}, Y),
            (TensorDataset(X, Y.float()), {}, Y),
            *((type("Odd", (Named,), {"targets": targets})(), {}, None) for targets in NO_TARGETS),
        ],
    )
    def test_is_random_if_labels_are_not_known_without_reading(self, dataset, keys, labels):
        samples = read_samples(dataset, 50, **keys)
        assert torch.equal(samples.rows, stratified_rows(120, 50, 0, labels))
        assert torch.equal(samples.inputs, X[samples.rows])
        assert torch.equal(samples.labels.long(), Y[samples.rows])


@pytest.mark.parametrize("odd", [{}, {"classes": None}, {"classes": [1, 2]}, {"classes": 7}, {"target_transform": len}])
def test_names_of_the_classes_are_found_unless_they_may_be_those_of_other_labels(odd):
    dataset = Subset(type("Odd", (Named,), odd)(), range(120))
    assert read_samples(dataset).classes == (None if odd else ["cat", "dog", "ship"])
