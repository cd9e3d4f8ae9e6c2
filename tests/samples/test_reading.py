"""The reader of samples: every kind of dataset, sampler, loader and batch, without a trainer."""

import random

import numpy as np
import pytest
import torch
from readable import BATCHES, PAIRS, WHOLE, Endless, Made, Own, Stream, X, Y, equal, everything
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

from bu_torch.samples.balance import stratified_rows
from bu_torch.samples.reading import read_loader, read_samples
from bu_torch.samples.samples import UnreadableError

DICTS = [{"id": i, "image": X[i], "target": Y[i]} for i in range(120)]
BY_NAME = {"input_key": "image", "label_key": "target"}


class DataModule:
    """As Lightning has them."""

    def prepare_data(self):
        self.is_prepared = True

    def setup(self, stage):
        assert (self.is_prepared, stage) == (True, "fit")
        self.dataset = WHOLE

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=7, shuffle=True)


def collated(change, **kwargs):
    return DataLoader(Made(), batch_size=30, collate_fn=lambda samples: change(*default_collate(samples)), **kwargs)


SOURCES = {
    "a pair of tensors": ((X, Y), {}),
    "a list of an array and a list": ([X.numpy(), Y.tolist()], {}),
    "three arrays by place": ((torch.rand(120), X, Y), {"input_key": 1, "label_key": -1}),
    "arrays by name": ({"id": np.arange(120), "image": X.numpy(), "target": Y.tolist()}, BY_NAME),
    "a tensor dataset": (WHOLE, {}),
    "a tensor dataset of three": (TensorDataset(torch.rand(120), X, Y), {"input_key": 1, "label_key": 2}),
    "a dataset": (Made(), {}),
    "a list of pairs": (PAIRS, {}),
    "a list of dicts": (DICTS, BY_NAME),
    "a subset": (Subset(WHOLE, range(120)), {}),
    "datasets in a row": (ConcatDataset([Subset(WHOLE, range(50)), Subset(Made(), range(50, 120))]), {}),
    "a stream": (Stream(), {}),
    "a data module": (DataModule(), {}),
    "a shuffled loader that drops the last": (DataLoader(WHOLE, batch_size=32, shuffle=True, drop_last=True), {}),
    "a loader with workers that stay": (DataLoader(Made(), batch_size=11, num_workers=2, persistent_workers=True), {}),
    "a loader of dicts": (DataLoader(DICTS, batch_size=7, shuffle=True), BY_NAME),
    "a loader of triples": (DataLoader(TensorDataset(Y, torch.rand(120), X)), {"input_key": -1, "label_key": 0}),
    "a loader of lists": (collated(lambda x, y: [x, y]), {}),
    "a loader of a stream": (DataLoader(Stream(), batch_size=32), {}),
    "a stream of a wrong length": (DataLoader(Stream(length=1000), batch_size=32), {}),
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
    assert (samples.rows.dtype, samples.n_training, samples.is_stratified) == (torch.int64, 120, None)
    assert random_states() == before


class TestNoTrace:
    def test_a_sampler_is_asked_through_a_copy_which_does_not_copy_the_dataset(self):
        class Stubborn(TensorDataset):
            def __reduce_ex__(self, protocol):
                raise TypeError("cannot be copied")

        sampler = Own(range(0, 120, 2))
        sampler.dataset = Stubborn(X, Y)
        assert equal(read_samples(DataLoader(sampler.dataset, sampler=sampler, batch_size=30)), range(0, 120, 2))
        assert sampler.n_passes == 0

    def test_the_users_loader_and_its_generator_are_left_alone(self):
        class Loader(DataLoader):
            def __iter__(self):
                raise AssertionError("The user's loader must not be iterated.")

        generator = torch.Generator().manual_seed(3)
        loader = Loader(Made(), batch_size=30, shuffle=True, generator=generator, num_workers=2)
        before = generator.get_state()
        assert equal(read_samples(loader), range(120))
        assert torch.equal(generator.get_state(), before)


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
    class Splitting(DataModule):
        def setup(self, stage):
            self.dataset = torch.utils.data.random_split(WHOLE, [60, 60])[0]

    torch.manual_seed(7)
    expected = torch.utils.data.random_split(WHOLE, [60, 60])[0].indices
    torch.manual_seed(7)
    before = random_states()
    assert equal(read_samples(Splitting()), expected)
    assert random_states() == before
    split = Splitting()
    split.prepare_data(), split.setup("fit")
    split.trainer, trained = object(), split.dataset  # as after a fit
    assert torch.equal(read_samples(split).inputs, X[trained.indices])
    assert split.dataset is trained


class TestStreams:
    @pytest.mark.parametrize("source", [Stream(), DataLoader(Endless(), batch_size=32), Endless()])
    def test_the_first_samples_are_read(self, source):
        samples = read_samples(source, 70)
        assert equal(samples, range(70))
        assert samples.n_training == 70

    @pytest.mark.parametrize(
        ("loader", "n_read"), [(DataLoader(Endless(), batch_size=32), 90), (DataLoader(BATCHES, batch_size=None), 120)]
    )
    def test_the_subset_is_chosen_among_those_read(self, loader, n_read):
        samples = read_loader(loader, lambda n: 20, stream_limit=90)
        assert (samples.n_training, samples.is_stratified) == (n_read, True)
        assert torch.equal(samples.rows, stratified_rows(n_read, 20, 0, Y[:n_read]))
        assert equal(samples, samples.rows)


class TestBatches:
    @pytest.mark.parametrize("dataset", [WHOLE, Made(), Stream()])
    def test_the_loaders_own_collate_function_makes_them_in_its_batch_size(self, dataset):
        def collate(samples):
            x, y = default_collate(samples)
            return x + len(samples), y

        samples = read_samples(DataLoader(dataset, batch_size=50, collate_fn=collate))
        assert torch.equal(samples.inputs, X + torch.tensor([50] * 100 + [20] * 20).unsqueeze(1))

    def test_a_subclass_of_a_tensor_dataset_is_read_by_its_own_method(self):
        class Shifted(TensorDataset):
            def __getitem__(self, i):
                assert isinstance(i, int)
                x, y = super().__getitem__(i)
                return x + 1, y

        assert torch.equal(read_samples(Shifted(X, Y)).inputs, X + 1)

    def test_samples_that_a_loader_drops_are_counted(self):
        for change, n_left in (
            (lambda x, y: (x[y < 2], y[y < 2]), 80),
            (lambda x, y: (x[:0], y[:0]) if bool((x == X[0]).all(dim=1).any()) else (x, y), 90),
        ):
            message = f"batches hold {n_left} of the 120 samples that were read: only those are used"
            with pytest.warns(UserWarning, match=message):
                samples = read_samples(collated(change))
            assert (samples.inputs.shape, samples.n_training) == ((n_left, 4), 120)
            assert samples.rows.tolist() == list(range(n_left))

    def test_labels_of_two_types_are_joined(self):
        samples = read_samples(DataLoader(Made(lambda i: (X[i], Y[i] if i < 60 else Y[i].float())), batch_size=30))
        assert torch.equal(samples.labels, Y.float())


class Unreadable:
    """As an image library has them, which no collate function knows."""


class Stuck(Own):
    def __deepcopy__(self, memo):
        raise RuntimeError("no copy")


FAILS = "Made cannot be read in this process: TypeError: default_collate: "
NO_SAMPLE = "there must be at least one sample, got none."
ALONE = "the inputs of a batch must be a tensor, got "
REFUSED = {
    "words": (Made(lambda i: ("word", 0)), ALONE + "tuple"),
    "objects": (Made(lambda i: (Unreadable(), 0)), FAILS + ".*Unreadable"),
    "labels that are none": (Made(lambda i: (X[i], None)), FAILS + ".*NoneType"),
    "inputs of other lengths": (collated(lambda x, y: ((x, x[1:]), y)), r".*be equally long, got \(30, 4\), \(29, 4\)"),
    "other inputs in some batches": (collated(lambda x, y: ({f"{x[0]}": x}, y)), "all batches must have the same"),
    "inputs alone": (Made(X.__getitem__), r"batches must be \(inputs, labels\), .*got a Tensor"),
    "one tensor": (TensorDataset(X), "batches must be .*got a list of 1"),
    "three tensors": (TensorDataset(X, Y, Y), "batches must be .*`input_key=`, .* and `label_key=`, got a list of 3"),
    "arrays without places": ((X, Y, Y), "batches must be .*got a tuple of 3"),
    "arrays without names": ({"image": X, "target": Y}, "batches are dicts with the keys 'image', 'target'"),
    "dicts without names": (DICTS, "batches are dicts with the keys 'id', 'image', 'target': name inputs and labels"),
    "lengths that differ": (collated(lambda x, y: (x, y[1:])), r".*be equally long, got \(30, 4\) and \(29,\)"),
    "shapes of inputs": (
        DataLoader(Made(lambda i: (X[i, : 2 + i // 60], 0)), batch_size=30),
        r"all inputs must have one shape, got \(2,\), \(3,\)",
    ),
    "shapes of labels": (
        DataLoader(Made(lambda i: (X[i], Y[i].expand(1 + i // 60))), batch_size=30),
        r"all labels must have one shape, got \(1,\), \(2,\)",
    ),
    "an empty dataset": (TensorDataset(X[:0], Y[:0]), NO_SAMPLE),
    "an empty stream": (Stream([]), NO_SAMPLE),
    "a sampler of nothing": (DataLoader(WHOLE, sampler=SubsetRandomSampler([])), NO_SAMPLE),
    "batches that are all dropped": (DataLoader(WHOLE, batch_size=500, drop_last=True), NO_SAMPLE),
    "a sampler without a copy": (DataLoader(WHOLE, sampler=Stuck([0])), "Stuck cannot be copied to see .*: no copy"),
    "a sampler that ends": (DataLoader(WHOLE, sampler=(i for i in range(60))), "generator cannot be copied to see"),
    "no such input": (DICTS, "`input_key='x'` is not among the keys of a batch: 'id', 'image'", "x", "target"),
    "no such label": (DICTS, "`label_key='y'` is not among the keys of a batch", "image", "y"),
    "one key": (DICTS, "batches are dicts with .*: name inputs and labels with `input_key=`.*`label_key=`", "image"),
    "no such place": (TensorDataset(X, Y, Y), "`label_key=3` is not a place in a batch of 3", 0, 3),
    "one place": (WHOLE, "`input_key=` and `label_key=` go together, got one of them", 1),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_refused_with_the_way_out(case):
    source, message, *keys = case
    way_out = r"Pass a pair \(inputs, labels\) of tensors or arrays\."
    with pytest.raises(ValueError, match=f"^`dataset`: {message}.*{way_out}$"):
        read_samples(source, **dict(zip(("input_key", "label_key"), keys, strict=False)))


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (3, TypeError, "`dataset` must be a Dataset or DataLoader .* or a pair .*got int"),
        (iter(PAIRS), TypeError, "`dataset` must be a Dataset or DataLoader .*got list_iterator"),
        ([DataLoader(WHOLE)] * 2, TypeError, "must be a single DataLoader, got a list of them. Pass a pair"),
        ({"a": DataLoader(WHOLE)}, TypeError, "must be a single DataLoader, got a dict of them"),
        ((X, Y[1:]), ValueError, r"inputs and labels of one length, got \(120, 4\) and \(119,\)"),
        ((X, Y[0]), ValueError, r"inputs and labels of one length, got \(120, 4\) and \(\)"),
        ((X, ["a"] * 120), TypeError, "`labels` must be a tensor or an array of numbers"),
        (collated(lambda x, y: (x.to_sparse(), y)), TypeError, "`inputs` must be a dense tensor .*sparse_coo"),
        (TensorDataset(X.to_sparse(), Y), TypeError, "`inputs` must be a dense tensor .*sparse_coo"),
    ],
)
def test_what_is_of_another_kind_is_refused_by_name(source, error, message):
    with pytest.raises(error, match=message):
        read_samples(source)


def test_a_loader_is_refused_without_a_name_for_the_caller_to_add():
    with pytest.raises(UnreadableError, match=r"^there must be at least one sample, got none\.$"):
        read_loader(DataLoader(TensorDataset(X[:0], Y[:0])), everything)
