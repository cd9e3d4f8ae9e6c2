"""The reader of samples: every kind of dataset, loader and batch, without a trainer."""

import random

import numpy as np
import pytest
import torch
from readable import BATCHES, PAIRS, WHOLE, Endless, Made, Stream, X, Y, equal
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from bu_torch.samples.reading import read_loader, read_samples
from bu_torch.samples.samples import stratified_rows

DICTS = [{"id": i, "image": X[i], "target": Y[i]} for i in range(120)]
BY_NAME = {"input_key": "image", "label_key": "target"}


class DataModule:
    """As Lightning has them; it splits by the global random state."""

    def prepare_data(self):
        self.is_prepared = True

    def setup(self, stage):
        assert (self.is_prepared, stage) == (True, "fit")
        self.dataset = torch.utils.data.random_split(WHOLE, [60, 60])[0]

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=7, shuffle=True)


def collated(change, **kwargs):
    return DataLoader(Made(), batch_size=30, collate_fn=lambda samples: change(*default_collate(samples)), **kwargs)


SOURCES = {
    "arrays by name": ({"id": np.arange(120), "image": X.numpy(), "target": Y.tolist()}, BY_NAME),
    "a dataset": (Made(), {}),
    "a list of dicts": (DICTS, BY_NAME),
    "datasets in a row": (ConcatDataset([Subset(WHOLE, range(50)), Subset(Made(), range(50, 120))]), {}),
    "a stream": (Stream(), {}),
    "a loader with workers that stay": (DataLoader(Made(), batch_size=11, num_workers=2, persistent_workers=True), {}),
    "a loader of triples": (DataLoader(TensorDataset(Y, torch.rand(120), X)), {"input_key": -1, "label_key": 0}),
    "a stream of batches": (DataLoader(Stream([(X[:70], Y[:70]), (X[70:], Y[70:])]), batch_size=None), {}),
    "a dataset of batches": (DataLoader(BATCHES, batch_size=None, shuffle=True), {}),
    "a dataset that is asked for lists": (
        DataLoader(WHOLE, sampler=BatchSampler(RandomSampler(WHOLE), 30, True), batch_size=None),
        {},
    ),
}


@pytest.mark.parametrize(("source", "options"), SOURCES.values(), ids=SOURCES)
def test_samples_are_read_in_order_wherever_they_are(source, options, random_states):
    before = random_states()
    samples = read_samples(source, **options)
    assert equal(samples, range(120))
    assert samples.rows.tolist() == list(range(120))
    assert (samples.rows.dtype, samples.n_training) == (torch.int64, 120)
    assert random_states() == before


def noisy(i):
    return (X[i] + torch.randn(4) + random.random() + np.random.rand()).float(), Y[i]


@pytest.mark.parametrize("dataset", [Made(noisy), DataLoader(Made(noisy), batch_size=7, shuffle=True, num_workers=1)])
def test_random_augmentation_is_read_at_the_same_draw_in_each_run(dataset):
    first = read_samples(dataset, seed=1)
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    assert torch.equal(first.inputs, torch.stack([noisy(i)[0] for i in range(120)]))
    assert torch.equal(read_samples(dataset, seed=1).inputs, first.inputs)
    assert not torch.equal(read_samples(dataset, seed=2).inputs, first.inputs)


def test_a_data_module_splits_by_the_users_random_state(random_states):
    torch.manual_seed(7)
    expected = torch.utils.data.random_split(WHOLE, [60, 60])[0].indices
    torch.manual_seed(7)
    before = random_states()
    assert equal(read_samples(DataModule()), expected)
    assert random_states() == before
    split = DataModule()
    split.prepare_data(), split.setup("fit")
    split.trainer, trained = object(), split.dataset  # as after a fit
    assert torch.equal(read_samples(split).inputs, X[trained.indices])
    assert split.dataset is trained


@pytest.mark.parametrize("source", [Stream(), DataLoader(Endless(), batch_size=32), Endless()])
def test_the_first_samples_of_a_stream_are_read(source):
    samples = read_samples(source, 70)
    assert equal(samples, range(70))
    assert samples.n_training == 70


@pytest.mark.parametrize(
    ("loader", "n_read"), [(DataLoader(Endless(), batch_size=32), 90), (DataLoader(BATCHES, batch_size=None), 120)]
)
def test_a_subset_is_chosen_among_those_read(loader, n_read):
    samples = read_loader(loader, lambda n: 20, stream_limit=90)
    assert samples.n_training == n_read
    assert torch.equal(samples.rows, stratified_rows(n_read, 20, 0, Y[:n_read]))
    assert equal(samples, samples.rows)


def with_first(x):
    return bool((x == X[0]).all(dim=1).any())


@pytest.mark.parametrize(
    ("change", "n_left"),
    [
        (lambda x, y: (x[y < 2], y[y < 2]), 80),
        (lambda x, y: (x[:0], y[:0]) if with_first(x) else (x, y), 90),
        (lambda x, y: None if with_first(x) else (x, y), 90),
    ],
)
def test_samples_that_a_loader_drops_are_counted(change, n_left, recwarn):
    samples = read_samples(collated(change))
    assert f"{n_left} of the 120" in " ".join(str(one.message) for one in recwarn)
    assert (samples.inputs.shape, samples.n_training) == ((n_left, 4), 120)
    assert samples.rows.tolist() == list(range(n_left))


def test_batches_of_a_stream_that_are_none_are_counted():
    batches = [(X[:70], Y[:70]), None, (X[70:], Y[70:]), None]
    with pytest.warns(UserWarning, match="2 batches that are None"):
        assert equal(read_samples(DataLoader(Stream(batches), batch_size=None)), range(120))


def test_padding_is_no_augmentation():
    def collate(samples):
        longest = max(i for i, _ in samples) + 1
        mask = torch.arange(longest) <= torch.tensor([[i] for i, _ in samples])
        return {"ids": mask * 7, "mask": mask.long()}, torch.tensor([label for _, label in samples])

    loader = DataLoader(Made(lambda i: (i, int(Y[i]))), 7, collate_fn=collate)
    assert not read_loader(loader, lambda n: n, looks_for_augmentation=True).is_random


REFUSED = {
    "other inputs in some batches": (collated(lambda x, y: ({f"{x[0]}": x}, y)), "same inputs"),
    "three tensors": (TensorDataset(X, Y, Y), "got a list of 3: .*`input_key=`.* and `label_key=`"),
    "dicts without names": (DICTS, "got a dict with 'id', 'image', 'target': name inputs and labels"),
    "shapes": (DataLoader(Made(lambda i: (X[i, : 2 + i // 60], 0)), batch_size=30), r"one shape, got \(2,\), \(3,\)"),
    "nothing": (DataLoader(WHOLE, sampler=SubsetRandomSampler([])), "at least one sample"),
    "no such input": (DICTS, "`input_key='x'`", "x", "target"),
    "one place": (WHOLE, "both `input_key=`.* and `label_key=`", 1),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_refused_with_the_way_out(case):
    source, message, *keys = case
    with pytest.raises(ValueError, match=rf"^`dataset`: .*{message}.*Pass a pair \(inputs, labels\)"):
        read_samples(source, **dict(zip(("input_key", "label_key"), keys, strict=False)))


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (3, TypeError, "`dataset` .*got int"),
        (iter(PAIRS), TypeError, "`dataset` .*got list_iterator"),
        ([DataLoader(WHOLE)] * 2, TypeError, "got DataLoader"),
        ((X, Y[1:]), ValueError, r"got \(120, 4\), \(119,\)"),
        ((X, ["a"] * 120), TypeError, "`labels`"),
        (Made(lambda i: ("word", 0)), TypeError, "`inputs`"),
        (collated(lambda x, y: ((x, x[1:]), y)), ValueError, r"`inputs` .*\(30, 4\), \(29, 4\)"),
    ],
)
def test_what_is_of_another_kind_is_refused_by_name(source, error, message):
    with pytest.raises(error, match=message):
        read_samples(source)
