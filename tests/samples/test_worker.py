"""Samples are read in a worker or from a copy: nothing of the user's moves, and augmentation is drawn again."""

import collections
import contextlib
import itertools
import multiprocessing
import os
import random
import sys
import threading
from functools import partial

import numpy as np
import pytest
import torch
from problems import Augmented, Made
from readable import PAIRS, X, Y
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, default_collate, get_worker_info

from bu_torch.samples import reading
from bu_torch.samples.reading import read_loader, with_readings
from bu_torch.samples.samples import Keys, subsample


def read(dataset, n_wanted=sys.maxsize, num_workers=0, collate_fn=None, worker_init_fn=None, **options):
    made_by = {"num_workers": num_workers, "collate_fn": collate_fn, "worker_init_fn": worker_init_fn}
    return read_loader(DataLoader(dataset, 7, **made_by), n_wanted, keys=Keys(), **options)


class Draws:
    """A transform that draws from generators of its own, and from the global ones."""

    def __init__(self):
        self.all = [random.Random(0), {"numpy": np.random.default_rng(0)}, torch.Generator().manual_seed(0)]

    def __call__(self, x):
        one, two, three = self.all
        return (x + one.random() + two["numpy"].normal() + torch.randn(4, generator=three) + Augmented.noise()).float()


class Counted(Made):
    """Samples from a function of the index and of the number of times that it was read before."""

    def __init__(self, item):
        super().__init__(item)
        self.seen = collections.Counter()

    def __getitem__(self, i):
        self.seen[i] += 1
        return self.item(i, self.seen[i] - 1)


class Counts(Counted):
    """Changes a transform that it holds, too."""

    def __init__(self):
        super().__init__(self.draw)
        self.transforms = [Draws()]

    def draw(self, i, times):
        return self.transforms[0](X[i]) + times, Y[i]


class Enclosed(Made):
    """Changes what no copy holds: what a function has enclosed, and its class."""

    def __init__(self):
        draw, Enclosed.cache = Draws(), {}
        super().__init__(lambda i: (self.cache.setdefault(i, draw(X[i])), Y[i]))


class Stream(IterableDataset):
    def __init__(self):
        self.epoch, self.draw = 0, Draws()

    def __iter__(self):
        self.epoch += 1
        return ((self.draw(x) + self.epoch, y) for x, y in PAIRS)


class Itself(IterableDataset):
    """Gives the rest of one iterator each time."""

    def __init__(self):
        self.rest = ((x + i, y) for i in range(3) for x, y in PAIRS)

    def __iter__(self):
        return itertools.islice(self.rest, 120)


class Collate(Draws):
    def __call__(self, samples):
        x, y = default_collate(samples)
        return super().__call__(x), y


class Order:
    def __init__(self):
        self.rng, self.n_passes = np.random.default_rng(0), 0

    def __iter__(self):
        self.n_passes += 1
        return iter(self.rng.permutation(120 - self.n_passes).tolist())


@pytest.mark.parametrize(
    ("kind", "num_workers"),
    [*itertools.product([Counts, Stream, Enclosed, Itself], (0, 1)), (Counts, "spawned"), (Stream, "spawned")],
)
def test_training_gets_the_same_batches_to_the_bit(kind, num_workers, request):
    if num_workers == "spawned":
        request.getfixturevalue("spawned")
        num_workers = 0

    def epochs(is_read):
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        dataset = kind()
        order = {} if isinstance(dataset, IterableDataset) else {"sampler": Order()}
        loader = DataLoader(dataset, 7, collate_fn=Collate(), num_workers=num_workers, **order)
        first = list(loader)
        if is_read:
            assert len(read_loader(loader, keys=Keys(), looks_for_augmentation=True).inputs) > 50
        return [part for batch in [*first, *loader] for part in batch]

    assert all(map(torch.equal, epochs(False), epochs(True)))


def test_a_worker_begins_as_those_of_the_loader():
    def begin(worker_id):
        info = get_worker_info()
        info.dataset.change = worker_id + info.num_workers

    dataset = Made(lambda i: (X[i] + get_worker_info().dataset.change, Y[i]))
    for num_workers in (0, 2):
        assert torch.equal(read(dataset, worker_init_fn=begin, num_workers=num_workers).inputs, X + 1)


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_a_worker_ends_with_the_reading(error):
    def transform(batch):
        if error is not None:
            raise error
        return batch

    with contextlib.nullcontext() if error is None else pytest.raises(error):
        read(Stream(), num_workers=1, transform=transform, stream_limit=20)
    assert multiprocessing.active_children() == []


def only_here(i):
    assert get_worker_info() is None, "in a worker"
    return PAIRS[i]


def total_and_seen():
    dataset = Counts()
    return read(dataset).inputs.sum().item(), len(dataset.seen)


class TestWithoutWorker:
    def test_a_copy_is_read_where_none_may_start(self):
        with multiprocessing.get_context("fork").Pool(1) as pool:  # of daemons
            total, n_seen = pool.apply(total_and_seen)
        assert n_seen == 0
        assert total != float(X.sum())

    @pytest.mark.parametrize("fault", ["raises", "dies", "waits for a lock"])
    def test_a_copy_is_read_where_one_fails(self, fault, monkeypatch):
        def item(i):
            n_tried.value += get_worker_info() is not None
            if get_worker_info() is not None and fault != "raises":
                os._exit(3) if fault == "dies" else lock.acquire()  # it is held while the worker begins
            return only_here(i)

        monkeypatch.setattr(reading, "_PATIENCE", 0.5)
        monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
        n_tried, lock, loader = multiprocessing.Value("i"), threading.Lock(), DataLoader(Made(item), 7)
        with lock:
            found = [(read_loader(loader, keys=Keys()).inputs.equal(X), n_tried.value) for _ in range(2)]
        assert found == [(True, n_tried.value)] * 2  # once is enough

    def test_the_original_is_read_if_it_cannot_be_copied(self, spawned):
        dataset = Counts()
        dataset.lock = threading.Lock()
        with pytest.warns(UserWarning, match="Counts cannot be copied"):
            read(dataset)
        assert len(dataset.seen) == 120

    def test_arrays_that_nobody_can_write_to_are_not_copied(self, spawned):
        class Mapped(np.ndarray):
            def __deepcopy__(self, memo):
                raise RuntimeError("too large")

        dataset = Counts()
        dataset.array = X.numpy().copy().view(Mapped)
        dataset.array.setflags(write=False)
        assert len(read(Subset(dataset, range(120))).inputs) == 120  # without a warning
        assert len(dataset.seen) == 0


def test_tensors_in_memory_are_indexed_here_and_copied(monkeypatch):
    monkeypatch.setattr("bu_torch.samples.reading.with_batches", None)
    x, rows = X.clone().requires_grad_(), torch.arange(119, -1, -1)
    dataset = TensorDataset(x, Y)
    for one in (Subset(Subset(dataset, range(120)), rows), Subset(dataset, rows.tolist())):
        for transform, change in ((None, 0), (lambda batch: [part.detach().add_(1) for part in batch], 1)):
            samples = read(one, transform=transform)
            assert torch.equal(samples.inputs, X[rows] + change)
            assert torch.equal(samples.labels, Y[rows] + change)
            samples.inputs.zero_()
    assert torch.equal(x, X)


def test_a_default_device_does_not_hinder_reading(accelerator):
    with torch.device(accelerator):
        samples = read(Made(PAIRS.__getitem__), 20)
    assert torch.equal(samples.inputs, X[samples.rows])


# Samples that random augmentation changes are read again, as draws that repeat.

read_random = partial(read, looks_for_augmentation=True, seed=3)
read_again = partial(with_readings, perturbation=None)


def test_readings_differ_repeat_and_begin_alike():
    samples = read_random(Augmented())
    (first, three), (same, two) = read_again(samples, 3), read_again(samples, 2)
    assert three.shape == (3, *samples.inputs.shape)
    assert torch.equal(three[:2], two)
    assert torch.equal(first.inputs, same.inputs)
    readings = [first.inputs, *three]
    for place, one in enumerate(readings):
        assert not any((one == other).any(dim=1).any() for other in readings[:place])
    assert torch.equal(read_again(read_random(Augmented()), 3)[1], three)


def test_readings_are_those_of_the_samples_also_of_some_of_them():
    shifted = Counted(lambda i, times: (X[i] + times, Y[i]))
    samples = read_random(shifted, 90)
    few = subsample(samples, 50, seed=0)
    first, further = read_again(few, 2)
    for offset, inputs in enumerate((first.inputs, *further)):
        assert torch.equal(inputs, X[few.rows] + offset)
    assert not shifted.seen  # nothing of the user's has moved


def padded(samples):
    ids = torch.nn.utils.rnn.pad_sequence([ids for ids, _ in samples], batch_first=True)
    return {"ids": ids, "mask": (ids > 0).long()}, torch.stack([label for _, label in samples])


def test_token_ids_stay_ids_and_are_padded_to_one_length():
    def item(i):
        ids = torch.arange(1, 4 + i % 7)
        return ids[torch.rand(len(ids)) < 0.7], Y[i]

    again, further = read_again(read_random(Made(item), collate_fn=padded), 2)
    assert again.inputs.dtype == further.dtype == torch.int64
    assert further.shape[2:] == again.inputs.shape[1:]
    ids = again.packing.unpack(further[0])["ids"]
    assert all(set(row[row > 0].tolist()) <= set(range(1, 4 + i % 7)) for i, row in enumerate(ids))


@pytest.mark.parametrize("change", [lambda i, times: (X[i] + times, (Y[i] + times) % 3), lambda i, times: 1 / 0])
def test_what_comes_later_is_told_too(change):
    """It differs as augmentation does when a few are read twice, and otherwise when all are."""
    later = Counted(lambda i, times: change(i, times) if i % 4 == 1 and times else (X[i] + times, Y[i]))
    samples = read_random(later)
    with pytest.warns(UserWarning, match="a further reading"):
        assert read_again(samples, 1)[0] is samples


BROKEN = torch.where(torch.arange(4) == 2, torch.nan, X)


@pytest.mark.parametrize(
    ("item", "collate_fn", "is_random"),
    [
        (lambda i, times: (X[i] + times * (i >= 110), Y[i]), None, True),  # the last class alone
        (lambda i, times: (BROKEN[i], Y[i]), None, False),
        (lambda i, times: (BROKEN[i] + times, Y[i]), None, True),
        (lambda i, times: (torch.full((i + 1,), 7), Y[i]), padded, False),
    ],
    ids=["some", "NaN", "also NaN", "padding"],
)
def test_augmentation_is_seen_where_it_is(item, collate_fn, is_random):
    assert (read_random(Counted(item), collate_fn=collate_fn).reread is not None) == is_random
