"""Which samples are read: those that a loader visits, and a subset of them."""

import math

import numpy as np
import pytest
import torch
from readable import BATCHES, PAIRS, WHOLE, Made, Own, Stream, X, Y, equal, everything
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from bu_torch.samples.balance import stratified_rows
from bu_torch.samples.reading import read_loader, read_samples
from bu_torch.samples.samples import choose_among, known_labels


class FirstBatches(BatchSampler):
    def __iter__(self):
        return iter([list(range(50)), list(range(50, 100))])


CHOSEN, IN_ORDER = SubsetRandomSampler(range(5, 95)), BatchSampler(SequentialSampler(WHOLE), 30, drop_last=False)
VISITED = {
    "at random": ({"sampler": RandomSampler(WHOLE, num_samples=30), "batch_size": 30}, range(120)),
    "at random among the first": ({"sampler": RandomSampler(range(60)), "batch_size": 30}, range(60)),
    "in order": ({"sampler": SequentialSampler(WHOLE), "batch_size": 30}, range(120)),
    "in order, the rest dropped": ({"batch_size": 50, "drop_last": True}, range(100)),
    "at random, the rest dropped": ({"batch_size": 50, "drop_last": True, "shuffle": True}, range(120)),
    "a share of several processes": ({"sampler": DistributedSampler(WHOLE, 2, 1), "batch_size": 30}, range(120)),
    "a part": ({"sampler": CHOSEN, "batch_size": 30}, range(5, 95)),
    "a part in batches": ({"batch_sampler": BatchSampler(CHOSEN, 30, drop_last=False)}, range(5, 95)),
    "a part in lists": ({"sampler": BatchSampler(CHOSEN, 30, drop_last=False), "batch_size": None}, range(5, 95)),
    "a list": ({"sampler": list(range(5, 95)), "batch_size": 30}, range(5, 95)),
    "an array": ({"sampler": np.arange(94, 4, -1), "batch_size": 30}, range(5, 95)),
    "a tensor": ({"sampler": torch.arange(94, 4, -1), "batch_size": 30}, range(5, 95)),
    "weights, some 0": ({"sampler": WeightedRandomSampler([1.0] * 70 + [0.0] * 50, 99), "batch_size": 30}, range(70)),
    "a batch sampler that leaves out": ({"batch_sampler": FirstBatches(range(120), 30, False)}, range(100)),
    "batches that overlap": ({"batch_sampler": [[7, 3, 6] * 4, list(range(5, 50))]}, [3, *range(5, 50)]),
    "tuples and tensors": ({"batch_sampler": Own([(0, 3), torch.tensor([3, 8]), np.array([9])])}, [0, 3, 8, 9]),
    "a sampler of lists": ({"sampler": Own([[2, 1], [0, 1]]), "batch_size": None}, range(3)),
    "a sampler of tensors": ({"sampler": Own([torch.tensor([2, 1]), torch.tensor([0])]), "batch_size": None}, range(3)),
}


@pytest.mark.parametrize("dataset", [WHOLE, Made()], ids=["at once", "one by one"])
@pytest.mark.parametrize(("options", "rows"), VISITED.values(), ids=VISITED)
def test_only_samples_that_the_loader_visits_are_read(dataset, options, rows):
    if options.get("batch_size", 0) is None and dataset is not WHOLE:
        dataset = Made(lambda rows: (X[rows], Y[rows]))
    samples = read_samples(DataLoader(dataset, **options))
    assert equal(samples, rows)
    assert samples.rows.tolist() == list(rows)
    assert samples.n_training == len(rows)


@pytest.mark.parametrize(
    ("loader", "rows"),
    [
        (DataLoader(WHOLE, batch_size=30), range(60)),
        (DataLoader(WHOLE, sampler=IN_ORDER, batch_size=None), range(60)),
        (DataLoader(WHOLE, batch_size=30, shuffle=True), range(120)),
        (DataLoader(WHOLE, sampler=CHOSEN, batch_size=30), range(5, 95)),
        (DataLoader(WHOLE, batch_sampler=Own([[2], [1], [0]])), range(3)),
        (DataLoader(Stream(), batch_size=30), range(120)),
    ],
)
def test_a_limit_on_batches_leaves_out_what_no_epoch_visits(loader, rows):
    assert equal(read_loader(loader, everything, n_batches=2), rows)


def test_a_wrapper_around_the_users_sampler_is_taken_off():
    class Wrapper(DistributedSampler):
        """As trainers have them."""

        def __init__(self, own):
            super().__init__(range(len(own)), num_replicas=2, rank=0)
            self.own = own

    def unwrap(sampler):
        return sampler.own if isinstance(sampler, Wrapper) else sampler

    blocks = BatchSampler(CHOSEN, 30, drop_last=False)
    for options in (
        {"sampler": Wrapper(CHOSEN), "batch_size": 30},
        {"batch_sampler": BatchSampler(Wrapper(CHOSEN), 30, drop_last=False)},
        {"sampler": Wrapper(blocks), "batch_size": None},
    ):
        assert equal(read_loader(DataLoader(WHOLE, **options), everything, unwrap=unwrap), range(5, 95))


def test_indices_need_not_be_numbers():
    by_name = {f"image {i:03d}": PAIRS[i] for i in range(120)}
    samples = read_samples(DataLoader(Made(by_name.__getitem__), sampler=sorted(by_name, reverse=True), batch_size=30))
    assert equal(samples, range(120))
    few = read_samples(DataLoader(by_name, sampler=sorted(by_name)[50:70], batch_size=30), 5)
    assert (len(few.inputs), few.rows.tolist(), few.n_training) == (5, list(range(5)), 20)


class Named(Made):
    """Labels known without reading, as torchvision's datasets have them."""

    targets = Y.tolist()
    classes = ("cat", "dog", "ship")


def named_otherwise(attribute, value):
    """A dataset of which an attribute is another, or fails."""

    class Otherwise(Named):
        def __getattribute__(self, name):
            if name == attribute and value is KeyError:
                raise KeyError(name)
            return value if name == attribute else super().__getattribute__(name)

    return Otherwise()


class TestSubset:
    labels = torch.tensor([0] * 80 + [1] * 39 + [2])

    def test_the_same_is_drawn_wherever_the_samples_are(self):
        pair, whole = (X, self.labels), TensorDataset(X, self.labels)
        sources = pair, whole, DataLoader(whole, batch_size=7, shuffle=True), Subset(whole, list(range(120)))
        found = [read_samples(source, 30, seed=3) for source in sources]
        found.append(choose_among(X, self.labels, lambda n: 30, 3))
        rows = stratified_rows(120, 30, 3, self.labels)
        for samples in found:
            assert torch.equal(samples.rows, rows)
            assert torch.equal(samples.inputs, X[rows])
            assert torch.equal(samples.labels, self.labels[rows])
            assert (samples.n_training, samples.is_stratified) == (120, True)
        assert not torch.equal(read_samples((X, self.labels), 30, seed=4).rows, rows)

    def test_each_class_keeps_its_share_and_one_sample_at_least(self):
        counts = read_samples((X, self.labels), 30).labels.bincount().tolist()
        assert counts in ([20, 9, 1], [19, 10, 1])
        assert stratified_rows(120, 2, 0, self.labels).shape == (2,)  # no room for all classes
        assert stratified_rows(5, 9, 0).tolist() == list(range(5))

    @pytest.mark.parametrize(
        "dataset",
        [
            WHOLE,
            TensorDataset(Y, X, torch.rand(120)),
            Named(),
            Subset(Named(), range(120)),
            Subset(Subset(WHOLE, range(119, -1, -1)), range(119, -1, -1)),
            TensorDataset(X, Y.float()),
            TensorDataset(X, Y.byte()),
            list(zip(X, Y, strict=True)),
        ],
    )
    def test_labels_may_be_known_without_reading(self, dataset):
        input_key, label_key = (1, 0) if len(getattr(dataset, "tensors", ())) == 3 else (None, None)
        assert known_labels(dataset, label_key).tolist() == Y.tolist()
        samples = read_samples(dataset, 50, input_key=input_key, label_key=label_key)
        assert samples.is_stratified
        assert torch.equal(samples.rows, stratified_rows(120, 50, 0, Y))

    def test_labels_of_a_list_of_dicts_and_of_a_column_are_known_by_either_name(self):
        samples = [{"pixels": x, "label": y} for x, y in zip(X, Y.tolist(), strict=True)]
        assert known_labels(samples, "labels").tolist() == Y.tolist()

        class Table(dict):
            column_names = ("pixels", "label")

        table = Table(pixels=X, label=Y.tolist())
        table.__class__.__len__ = lambda _: 120
        assert known_labels(table, "labels").tolist() == Y.tolist()

    def test_the_labels_are_those_of_the_samples_that_are_visited(self):
        samples = read_samples(DataLoader(TensorDataset(X, self.labels), sampler=range(60, 120), batch_size=7), 15)
        assert samples.labels.bincount().tolist() == [5, 9, 1]
        assert samples.n_training == 60
        assert int(samples.rows.min()) >= 60

    @pytest.mark.parametrize(
        "targets", [None, ["a"] * 120, [0.5] * 120, [math.nan] * 120, [1], [[1]] * 120, KeyError, [1j] * 120]
    )
    def test_a_subset_is_random_if_labels_are_not_known(self, targets):
        samples = read_samples(named_otherwise("targets", targets), 50)
        assert samples.is_stratified is False
        assert torch.equal(samples.rows, stratified_rows(120, 50, 0))
        assert equal(samples, samples.rows)

    def test_no_sample_at_most_is_refused(self):
        with pytest.raises(ValueError, match="`max_samples`"):
            read_samples((X, Y), 0)


class TestNames:
    def test_names_of_the_classes_are_found(self):
        stream, batches = Stream(), Made(BATCHES.item, 3)
        stream.classes = batches.classes = Named.classes
        loader = DataLoader(Named(), batch_size=7)
        for source in (Named(), Subset(Named(), range(120)), loader, stream, DataLoader(batches, batch_size=None)):
            assert read_samples(source).classes == ["cat", "dog", "ship"]

    @pytest.mark.parametrize("names", [None, [1, 2], KeyError])
    def test_names_that_are_none_are_left_out(self, names):
        assert read_samples(named_otherwise("classes", names)).classes is None
        assert read_samples(WHOLE).classes is None
