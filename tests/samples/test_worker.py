"""Samples are read in a worker or from a copy: nothing of the user's moves, and no process stays."""

import collections
import contextlib
import itertools
import multiprocessing
import os
import random
import threading

import numpy as np
import pytest
import torch
from problems import Augmented, Made, blobs
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    default_collate,
    get_worker_info,
)

from bu_torch.samples import batches
from bu_torch.samples.reading import read_loader

X, Y = blobs(60)
PAIRS = list(zip(X, Y, strict=True))


def read(dataset, how_many=lambda n: n, num_workers=0, collate_fn=None, worker_init_fn=None, **options):
    made_by = {"num_workers": num_workers, "collate_fn": collate_fn, "worker_init_fn": worker_init_fn}
    return read_loader(DataLoader(dataset, 7, **made_by), how_many, **options)


class Draws:
    """A transform with generators of its own."""

    def __init__(self):
        self.all = [random.Random(0), {"numpy": np.random.default_rng(0)}, torch.Generator().manual_seed(0)]

    def __call__(self, x):
        one, two, three = self.all
        return (x + one.random() + two["numpy"].normal() + torch.randn(4, generator=three)).float()


class Transforms(Made):
    def __init__(self):
        super().__init__(self.draw, 60)
        self.transforms, self.seen = [Draws()], collections.Counter()

    def draw(self, i):
        return self.transforms[0](X[i]), Y[i]


class Counts(Transforms):
    def __getitem__(self, i):
        self.seen[i] += 1
        return X[i] + self.seen[i], Y[i]


class Enclosed(Transforms):
    """Changes what no copy holds: what a function has enclosed, and its class."""

    def __init__(self):
        super().__init__()
        draw, Enclosed.cache = Draws(), {}
        self.enclosed = lambda x: draw(x)

    def __getitem__(self, i):
        return self.cache.setdefault(i, self.enclosed(X[i])), Y[i]


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
        return itertools.islice(self.rest, 60)


class Collate(Draws):
    def __call__(self, samples):
        x, y = default_collate(samples)
        return super().__call__(x), y


class Order(Sampler):
    def __init__(self):
        self.rng, self.n_passes = np.random.default_rng(0), 0

    def __iter__(self):
        self.n_passes += 1
        return iter(self.rng.permutation(60 - self.n_passes).tolist())


COPIED = [Transforms, Counts, Stream, Augmented]


@pytest.mark.parametrize(
    ("kind", "num_workers"),
    [*itertools.product([*COPIED, Enclosed, Itself], (0, 1)), *((kind, "spawned") for kind in COPIED)],
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
            assert len(read_loader(loader, lambda n: n, looks_for_augmentation=True).inputs) > 50
        return [part for batch in [*first, *loader] for part in batch]

    assert all(map(torch.equal, epochs(False), epochs(True)))


def test_a_worker_begins_as_those_of_the_loader():
    def begin(worker_id):
        info = get_worker_info()
        info.dataset.change = worker_id + info.num_workers

    dataset = Transforms()
    dataset.item = lambda i: (X[i] + get_worker_info().dataset.change, Y[i])
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


class TestWithoutWorker:
    def test_a_copy_is_read_where_none_may_start(self):
        context = multiprocessing.get_context("fork")
        queue, dataset = context.SimpleQueue(), Counts()

        def run():
            queue.put((read(dataset).inputs.sum().item(), len(dataset.seen)))

        process = context.Process(target=run, daemon=True)
        process.start()
        total, n_seen = queue.get()
        process.join()
        assert n_seen == 0
        assert total > float(X.sum())

    @pytest.mark.parametrize("fault", ["raises", "dies", "waits for a lock"])
    def test_a_copy_is_read_where_one_fails(self, fault, monkeypatch):
        def item(i):
            if get_worker_info() is not None and fault != "raises":
                os._exit(3) if fault == "dies" else lock.acquire()  # it is held while the worker begins
            return only_here(i)

        monkeypatch.setattr(batches, "_PATIENCE", 1)
        monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
        lock, dataset = threading.Lock(), Made(item, 60)
        with lock:
            assert torch.equal(read(dataset).inputs, X)

    def test_the_original_is_read_if_it_cannot_be_copied(self, spawned):
        dataset = Counts()
        dataset.lock = threading.Lock()
        with pytest.warns(UserWarning, match="Counts cannot be copied"):
            read(dataset)
        assert len(dataset.seen) == 60

    def test_arrays_that_nobody_can_write_to_are_not_copied(self, spawned):
        class Mapped(np.ndarray):
            def __deepcopy__(self, memo):
                raise RuntimeError("too large")

        dataset = Counts()
        dataset.array = X.numpy().copy().view(Mapped)
        dataset.array.setflags(write=False)
        assert len(read(Subset(dataset, range(60))).inputs) == 60  # without a warning
        assert len(dataset.seen) == 0


def test_tensors_in_memory_are_indexed_here_and_copied(monkeypatch):
    monkeypatch.setattr("bu_torch.samples.reading.with_batches", None)
    x, rows = X.clone().requires_grad_(), torch.arange(59, -1, -1)
    dataset = TensorDataset(x, Y)
    for one in (Subset(Subset(dataset, range(60)), rows), Subset(dataset, rows.tolist())):
        for transform, change in ((None, 0), (lambda batch: [part.detach().add_(1) for part in batch], 1)):
            samples = read(one, transform=transform)
            assert torch.equal(samples.inputs, X[rows] + change)
            assert torch.equal(samples.labels, Y[rows] + change)
            samples.inputs.zero_()
    assert torch.equal(x, X)


def test_a_default_device_does_not_hinder_reading(accelerator):
    with torch.device(accelerator):
        samples = read(Made(PAIRS.__getitem__, 60), lambda n: 20)
    assert torch.equal(samples.inputs, X[samples.rows])
