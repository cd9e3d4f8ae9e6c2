"""Samples are read in a worker or from a copy: nothing of the user's moves, and no process stays."""

import collections
import contextlib
import gc
import itertools
import multiprocessing
import os
import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from problems import Augmented, Made, blobs
from readable import Endless
from torch.utils import _pytree as pytree
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    default_collate,
    get_worker_info,
)

from bu_torch.samples import worker
from bu_torch.samples.batches import TooManyBytesError
from bu_torch.samples.reading import read_loader, read_samples
from bu_torch.samples.samples import UnreadableError

X, Y = blobs(60)
PAIRS = list(zip(X, Y, strict=True))


def made(item):
    return Made(item, 60)


def read(dataset, how_many=lambda n: n, num_workers=0, collate_fn=None, worker_init_fn=None, **options):
    made_by = {"num_workers": num_workers, "collate_fn": collate_fn, "worker_init_fn": worker_init_fn}
    return read_loader(DataLoader(dataset, 7, **made_by), how_many, **options)


def n_open():
    return len(list(Path("/dev/fd").iterdir()))


class Draws:
    """A transform with generators of its own."""

    def __init__(self):
        self.all = [random.Random(0), {"numpy": np.random.default_rng(0)}, torch.Generator().manual_seed(0)]

    def __call__(self, x):
        one, two, three = self.all
        return (x + one.random() + two["numpy"].normal() + torch.randn(4, generator=three)).float()


class Transforms(Made):
    def __init__(self, folder=None):
        super().__init__(self.draw, 60)
        self.transforms, self.folder = [Draws()], folder
        self.seen, self.lists, self.array = collections.Counter(), collections.defaultdict(list), np.zeros(60)

    def draw(self, i):
        return self.transforms[0](X[i]), Y[i]


class Counts(Transforms):
    def __getitem__(self, i):
        self.seen[i] += 1
        self.lists[i].append(i)
        self.array[i] += 1
        return X[i] + self.seen[i] + len(self.lists[i]) + float(self.array.sum()), Y[i]


class Lists(Transforms):
    def __getitems__(self, indices):
        return [self[i] for i in reversed(indices)]


class Enclosed(Transforms):
    """Changes what no copy holds: what a function has enclosed, and its class."""

    def __init__(self, folder):
        super().__init__(folder)
        draw, Enclosed.cache = Draws(), {}
        self.draw = lambda x: draw(x)

    def __getitem__(self, i):
        return self.cache.setdefault(i, self.draw(X[i])), Y[i]


class Opened(Transforms):
    """Reads on in an open file: a forked process shares the place in it."""

    def __init__(self, folder):
        super().__init__(folder)
        (folder / "x").write_bytes(X.numpy().tobytes() * 3)
        self.number = os.open(folder / "x", os.O_RDONLY)

    def __getitem__(self, i):
        return torch.frombuffer(bytearray(os.read(self.number, 16) or bytes(16)), dtype=torch.float32), Y[i]

    def __del__(self):
        os.close(self.number)


class Piped(Opened):
    def __init__(self, folder):
        super().__init__(folder)
        os.close(self.number)
        self.number, end = os.pipe()
        os.write(end, X.numpy().tobytes() * 3)
        os.close(end)


class Stream(IterableDataset):
    def __init__(self, folder):
        self.epoch, self.draw = 0, Draws()

    def __iter__(self):
        self.epoch += 1
        return ((self.draw(x) + self.epoch, y) for x, y in PAIRS)


class Once(IterableDataset):
    """Gives the rest of one iterator each time."""

    def __init__(self, folder):
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


COPIED = [Transforms, Counts, Lists, Stream, lambda folder: Augmented()]
KINDS = [*COPIED, Enclosed, Opened, Piped, Once]


@pytest.mark.parametrize(
    ("kind", "num_workers"), [*itertools.product(KINDS, (0, 1)), *((kind, "spawned") for kind in COPIED)]
)
def test_training_gets_the_same_batches_to_the_bit(kind, num_workers, tmp_path, request):
    if num_workers == "spawned":
        request.getfixturevalue("spawned")
        num_workers = 0

    def epochs(name, is_read):
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        (tmp_path / name).mkdir()
        dataset = kind(tmp_path / name)
        order = {} if isinstance(dataset, IterableDataset) else {"sampler": Order()}
        loader = DataLoader(dataset, 7, collate_fn=Collate(), num_workers=num_workers, **order)
        first = list(loader)
        if is_read:
            assert len(read_loader(loader, lambda n: n, looks_for_augmentation=True).inputs) > 50
        return [part for batch in [*first, *loader] for part in batch]

    pairs = zip(epochs("without", False), epochs("with", True), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


class TestWorker:
    def test_it_begins_as_those_of_the_loader(self):
        def begin(worker_id):
            info = get_worker_info()
            info.dataset.change = worker_id + info.num_workers

        dataset = Transforms()
        dataset.item = lambda i: (X[i] + get_worker_info().dataset.change, Y[i])
        for num_workers in (0, 2):
            samples = read(dataset, worker_init_fn=begin, num_workers=num_workers)
            assert torch.equal(samples.inputs, X + 1)

    def test_the_default_start_method_is_not_fixed(self):
        before = multiprocessing.get_start_method(allow_none=True)
        multiprocessing.set_start_method(None, force=True)
        read(made(PAIRS.__getitem__))
        assert multiprocessing.get_start_method(allow_none=True) is None
        multiprocessing.set_start_method(before, force=True)

    @pytest.mark.parametrize("has_files_in_memory", [True, False])
    def test_its_batches_are_those_of_a_loader(self, has_files_in_memory, monkeypatch):
        if not has_files_in_memory:
            monkeypatch.delattr(os, "memfd_create")
        base, scale = torch.randn(60, 3, 8), torch.ones(4, requires_grad=True)
        views = {"a view": lambda i: base[i, :, 2:4].T, "empty": lambda i: X[i, :0], "yes or no": lambda i: X[i] > 0}
        others = {"half": lambda i: X[i].bfloat16(), "an array": lambda i: X[i].numpy(), "numbers": lambda i: [i, 0.5]}
        parts = {**views, **others, "words": str, "a history": lambda i: X[i] * scale}
        loader = DataLoader(made(lambda i: {name: part(i) for name, part in parts.items()}), 7)
        for there, here in zip(worker.from_worker(loader, {"batch_size": 7}, 0), loader, strict=True):
            for one, other in zip(*map(pytree.tree_leaves, (there, here)), strict=True):
                assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
            assert there["half"].dtype == torch.bfloat16
            assert not there["a history"].requires_grad

    @pytest.mark.parametrize("fault", ["", "a stream", "bytes", "an error", "Ctrl-C", "a broken sample"])
    def test_it_ends_when_enough_is_read_or_something_fails(self, fault):
        errors = {"an error": RuntimeError, "Ctrl-C": KeyboardInterrupt, "bytes": TooManyBytesError}

        def transform(batch):
            raise errors[fault]

        gc.collect()
        before = n_open()
        error = errors.get(fault) or (UnreadableError if fault == "a broken sample" else None)
        with pytest.raises(error) if error else contextlib.nullcontext():
            if fault == "a stream":
                read_samples(Endless(), 70)
            else:
                read(
                    made(PAIRS[: 20 if fault == "a broken sample" else 60].__getitem__),
                    num_workers=1,
                    transform=transform if fault in ("an error", "Ctrl-C") else None,
                    max_bytes=100 if fault == "bytes" else None,
                )
        assert multiprocessing.active_children() == []
        gc.collect()  # errors, and what they were raised in
        for _ in range(100):  # threads of queues end by themselves
            time.sleep(0.05 if n_open() > before else 0)
        assert n_open() <= before


def raises(i):
    raise KeyError(f"file {i} is broken" + ", very much" * 100)


def only_here(i):
    assert get_worker_info() is None, "in a worker"
    return PAIRS[i]


class TestWithoutWorker:
    def test_a_copy_is_read_where_none_may_start(self):
        """As in Ray's processes, which are daemonic."""
        context = multiprocessing.get_context("fork")
        queue, dataset = context.SimpleQueue(), Counts()
        dataset.item = only_here

        def run():
            queue.put((read(dataset).inputs.sum().item(), len(dataset.seen)))

        process = context.Process(target=run, daemon=True)
        process.start()
        total, n_seen = queue.get()
        process.join()
        assert n_seen == 0
        assert total > float(X.sum())

    @pytest.mark.parametrize("fault", ["raises", "dies", "waits for a lock", "gives what cannot be pickled"])
    def test_a_copy_is_read_where_one_fails(self, fault, monkeypatch):
        class Batch(list):
            pass

        def item(i):
            if get_worker_info() is not None and fault in ("dies", "waits for a lock"):
                os._exit(3) if fault == "dies" else lock.acquire()  # it is held while the worker begins
            return only_here(i) if fault == "raises" else PAIRS[i]

        monkeypatch.setattr(worker, "_PATIENCE", 1)
        monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
        collate = {"collate_fn": lambda samples: Batch(default_collate(samples))} if fault.startswith("gives") else {}
        lock, dataset = threading.Lock(), Transforms()
        dataset.item = item
        said = "timed out after 1 seconds. It may wait for a lock or a thread"
        is_said = pytest.warns(UserWarning, match=said) if fault.startswith("waits") else contextlib.nullcontext()
        with lock, is_said:
            assert torch.equal(read(dataset, **collate).inputs, X)

    def test_the_original_is_read_if_it_cannot_be_copied(self, spawned):
        dataset = Counts()
        dataset.lock = threading.Lock()
        message = r"Counts cannot be copied \(TypeError: cannot pickle '_thread.lock' object\): reading it may move"
        with pytest.warns(UserWarning, match=message):
            read(dataset)
        assert len(dataset.seen) == 60

    def test_a_stream_that_would_be_used_up_is_refused_unless_a_worker_reads_it(self, request):
        class Itself(Once):
            def __iter__(self):
                return self.rest

        stream = Itself(None)
        assert len(read(stream).inputs) == 180
        request.getfixturevalue("spawned")
        with pytest.raises(UnreadableError, match=r"^Itself gives the same iterator each time: reading it here would"):
            read(stream)
        assert len(list(stream)) == 180

    def test_arrays_that_nobody_can_write_to_are_not_copied(self, spawned, tmp_path):
        X.numpy().tofile(tmp_path / "x")

        class Mapped(Transforms):
            def __getitem__(self, i):
                assert np.shares_memory(self.array, array)
                assert self.seen is not counter
                return np.array(self.array[i]), Y[i]

        mapped = Mapped()
        mapped.array = array = np.memmap(tmp_path / "x", np.float32, "r", shape=(60, 4))
        counter = mapped.seen
        assert torch.equal(read(Subset(mapped, range(60))).inputs, X)

    def test_what_a_dataset_closes_in_the_end_stays_open(self, spawned):
        closed = []

        class File(Made):
            def __del__(self):
                closed.append(self)

        dataset = File(PAIRS.__getitem__, 60)
        read(Subset(dataset, range(60)))
        assert closed == []

    @pytest.mark.parametrize(("num_workers", "place"), [(0, "this process"), (1, "a worker process")])
    def test_an_error_is_one_line(self, num_workers, place):
        match = rf"^Made cannot be read in {place}: KeyError: 'file 0 is broken, very much.{{200,280}} \[\.\.\.\]\.$"
        with pytest.raises(UnreadableError, match=match):
            read(made(raises), num_workers=num_workers)


def test_padding_is_no_augmentation():
    def collate(samples):
        longest = max(i for i, _ in samples) + 1
        mask = torch.arange(longest) <= torch.tensor([[i] for i, _ in samples])
        return {"ids": mask * 7, "mask": mask.long()}, torch.tensor([label for _, label in samples])

    dataset = made(lambda i: (i, int(Y[i])))
    assert not read(dataset, looks_for_augmentation=True, collate_fn=collate).is_random


def test_tensors_in_memory_are_indexed_here_and_copied(monkeypatch):
    monkeypatch.setattr("bu_torch.samples.readings.with_batches", None)
    x, y = X.clone().requires_grad_(), Y.clone()
    dataset, rows = TensorDataset(x, y), torch.arange(59, -1, -1)
    for one in (dataset, Subset(Subset(dataset, range(60)), rows), Subset(dataset, rows.tolist())):
        for transform in (None, lambda batch: [part.detach().add_(1) for part in batch]):
            samples = read(one, transform=transform)
            changed = 0 if transform is None else 1
            expected = (X, Y) if one is dataset else (X[rows], Y[rows])
            assert torch.equal(samples.inputs, expected[0] + changed)
            assert torch.equal(samples.labels, expected[1] + changed)
            samples.inputs.zero_()
            samples.labels.zero_()
    assert torch.equal(x, X)
    assert torch.equal(y, Y)


@pytest.mark.parametrize("start", ["in a worker", "from a copy"])
def test_a_default_device_does_not_hinder_reading(start, request, accelerator):
    if start == "from a copy":
        request.getfixturevalue("spawned")
    with torch.device(accelerator):
        samples = read(made(PAIRS.__getitem__), lambda n: 20)
    assert torch.equal(samples.labels, Y[samples.rows])
    assert torch.equal(samples.inputs, X[samples.rows])
