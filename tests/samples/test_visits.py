"""Which samples are read: those that a loader visits, as often as it draws them, and a subset of them."""

import numpy as np
import pytest
import torch
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from readable import PAIRS, WHOLE, Made, Own, Stream, X, Y, equal, everything
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

from bu_torch.samples.reading import read_loader, read_samples
from bu_torch.samples.samples import choose_among, fewer_of, stratified_rows, whole_samples


class FirstBatches(BatchSampler):
    def __iter__(self):
        return iter([list(range(50)), list(range(50, 100))])


CHOSEN, IN_ORDER = SubsetRandomSampler(range(5, 95)), BatchSampler(SequentialSampler(WHOLE), 30, drop_last=False)
VISITED = {
    "at random": ({"sampler": RandomSampler(WHOLE, num_samples=30), "batch_size": 30}, range(120)),
    "in order, the rest dropped": ({"batch_size": 50, "drop_last": True}, range(100)),
    "a share of several processes": ({"sampler": DistributedSampler(WHOLE, 2, 1), "batch_size": 30}, range(120)),
    "a part in batches": ({"batch_sampler": BatchSampler(CHOSEN, 30, drop_last=False)}, range(5, 95)),
    "a part in lists": ({"sampler": BatchSampler(CHOSEN, 30, drop_last=False), "batch_size": None}, range(5, 95)),
    "an array": ({"sampler": np.arange(94, 4, -1), "batch_size": 30}, range(5, 95)),
    "a batch sampler that leaves out": ({"batch_sampler": FirstBatches(range(120), 30, False)}, range(100)),
    "weights, some 0": ({"sampler": WeightedRandomSampler([1.0] * 70 + [0.0] * 50, 99), "batch_size": 30}, range(70)),
    "batches that overlap": ({"batch_sampler": Own([(7, 3, 6), torch.tensor([3, 8]), np.array([9])])}, [3, 6, 7, 8, 9]),
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
        (DataLoader(Stream(), batch_size=30), range(120)),
    ],
)
def test_a_limit_on_batches_leaves_out_what_no_epoch_visits(loader, rows):
    assert equal(read_loader(loader, everything, n_batches=2), rows)


def test_a_wrapper_around_the_users_sampler_is_taken_off():
    wrapper = DistributedSamplerWrapper(CHOSEN, num_replicas=2, rank=0)
    for options in ({"sampler": wrapper, "batch_size": 30}, {"batch_sampler": BatchSampler(wrapper, 30, False)}):
        assert equal(read_loader(DataLoader(WHOLE, **options), everything), range(5, 95))


def test_indices_need_not_be_numbers():
    by_name = {f"image {i:03d}": PAIRS[i] for i in range(120)}
    samples = read_samples(DataLoader(Made(by_name.__getitem__), sampler=sorted(by_name, reverse=True), batch_size=30))
    assert equal(samples, range(120))
    few = read_samples(DataLoader(by_name, sampler=sorted(by_name)[50:70], batch_size=30), 5)
    assert (len(few.inputs), few.rows.tolist(), few.n_training) == (5, list(range(5)), 20)


class TestWeights:
    of_place = 1.0 + torch.arange(120, dtype=torch.float64)

    @pytest.mark.parametrize("max_samples", [None, 40])
    @pytest.mark.parametrize("dataset", [WHOLE, PAIRS], ids=["at once", "a list"])
    def test_are_those_of_the_sampler_and_stay_with_their_samples(self, dataset, max_samples):
        sampler = WeightedRandomSampler(self.of_place, 50)
        for options in ({"sampler": sampler, "batch_size": 30}, {"batch_sampler": BatchSampler(sampler, 30, True)}):
            samples = read_samples(DataLoader(dataset, **options), max_samples, 3)
            assert torch.equal(samples.inputs, X[samples.rows])
            assert torch.equal(samples.weights, self.of_place[samples.rows])

    @pytest.mark.parametrize(
        "sampler",
        [
            RandomSampler(WHOLE),
            WeightedRandomSampler(torch.full((120,), 0.3), 120),
            WeightedRandomSampler(of_place, 120, replacement=False),
        ],
    )
    def test_that_are_all_alike_are_none(self, sampler):
        assert read_samples(DataLoader(WHOLE, sampler=sampler, batch_size=30)).weights is None


MARKED = torch.where(torch.arange(120) % 5 == 2, -100, Y)
KEPT = torch.arange(120)[torch.arange(120) % 5 != 2]


class TestIgnoredLabels:
    @pytest.mark.parametrize(
        "source",
        [
            TensorDataset(X, MARKED),
            Made(lambda i: (X[i], MARKED[i])),
            DataLoader(Stream(list(zip(X, MARKED, strict=True))), batch_size=32),
            (X, MARKED.unsqueeze(1)),
            (X, MARKED.bfloat16()),
        ],
        ids=["at once", "one by one", "a stream", "a column", "bfloat16"],
    )
    def test_are_left_out_and_counted(self, source):
        samples = read_samples(source)
        assert samples.n_ignored == 24
        assert torch.equal(samples.inputs, X[KEPT])
        assert torch.equal(samples.labels.flatten().long(), Y[KEPT])
        assert torch.equal(samples.rows, KEPT)

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.bool])
    def test_labels_without_a_sign_have_none(self, dtype):
        labels = (torch.arange(120) % 2 * (1 if dtype is torch.bool else 156)).to(dtype)  # -100 as a byte
        few = choose_among(X, labels, lambda n: 50, 0)
        assert few.n_ignored == 0
        assert torch.equal(few.labels.long(), labels.long()[few.rows])

    def test_of_what_a_user_gives_the_places_are_the_users(self):
        few = fewer_of(whole_samples(X.numpy(), MARKED.numpy(), TestWeights.of_place.numpy()), 50, 1)
        assert torch.equal(few.inputs, X[few.rows])
        assert torch.equal(few.weights, TestWeights.of_place[few.rows])
        assert torch.equal(few.labels, Y[few.rows])


class Named(Made):
    """Labels known without reading, as torchvision's datasets have them."""

    targets = Y.tolist()
    classes = ("cat", "dog", "ship")


class TestSubset:
    labels = torch.tensor([0] * 80 + [1] * 39 + [2])

    def test_the_same_is_drawn_wherever_the_samples_are(self):
        whole = TensorDataset(X, self.labels)
        sources = (X, self.labels), whole, DataLoader(whole, batch_size=7, shuffle=True), Subset(whole, range(120))
        found = [read_samples(source, 30, seed=3) for source in sources]
        rows = stratified_rows(120, 30, 3, self.labels)
        for samples in found:
            assert torch.equal(samples.rows, rows)
            assert torch.equal(samples.inputs, X[rows])
            assert torch.equal(samples.labels, self.labels[rows])
            assert samples.n_training == 120
        assert samples.labels.bincount().tolist() in ([20, 9, 1], [19, 10, 1])
        assert not torch.equal(read_samples((X, self.labels), 30, seed=4).rows, rows)

    @pytest.mark.parametrize(
        "dataset",
        [
            TensorDataset(Y, X, torch.rand(120)),
            Subset(Named(), range(120)),
            Subset(Subset(WHOLE, range(119, -1, -1)), range(119, -1, -1)),
            TensorDataset(X, Y.float()),
        ],
    )
    def test_labels_may_be_known_without_reading(self, dataset):
        input_key, label_key = (1, 0) if len(getattr(dataset, "tensors", ())) == 3 else (None, None)
        samples = read_samples(dataset, 50, input_key=input_key, label_key=label_key)
        assert torch.equal(samples.rows, stratified_rows(120, 50, 0, Y))

    @pytest.mark.parametrize("targets", [["a"] * 120, [0.5] * 120, [1], property(lambda self: 1 / 0)])
    def test_a_subset_is_random_if_labels_are_not_known(self, targets):
        samples = read_samples(type("Odd", (Named,), {"targets": targets})(), 50)
        assert torch.equal(samples.rows, stratified_rows(120, 50, 0))
        assert equal(samples, samples.rows)


def test_names_of_the_classes_are_found():
    assert read_samples(DataLoader(Subset(Named(), range(120)), batch_size=7)).classes == ["cat", "dog", "ship"]
    for names in (None, [1, 2], property(lambda self: 1 / 0)):
        assert read_samples(type("Odd", (Named,), {"classes": names})()).classes is None
