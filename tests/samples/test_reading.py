"""The reader of samples: every kind of dataset, sampler, loader and batch, without a trainer."""

import itertools
import math
import random

import numpy as np
import problems
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from bu_torch.samples.reading import read_loader, read_samples
from bu_torch.samples.samples import UnreadableError, choose_among, known_labels
from bu_torch.samples.subset import stratified_rows

X, Y = problems.blobs(120)
WHOLE = TensorDataset(X, Y)
PAIRS = list(zip(X, Y, strict=True))
DICTS = [{"id": i, "image": X[i], "target": Y[i]} for i in range(120)]
BY_NAME = {"input_key": "image", "label_key": "target"}


class Made(problems.Made):
    def __init__(self, item=lambda i: (X[i], Y[i]), length=120):
        super().__init__(item, length)


BATCHES = Made(lambda i: (X[i * 40 : i * 40 + 40], Y[i * 40 : i * 40 + 40]), 3)


class Stream(IterableDataset):
    """Begins anew with each iterator."""

    def __init__(self, samples=PAIRS, length=None):
        self.samples, self.length = samples, length

    def __iter__(self):
        return iter(self.samples)

    def __len__(self):
        if self.length is None:
            raise TypeError("Streams have no length.")
        return self.length


class Endless(IterableDataset):
    def __iter__(self):
        return itertools.cycle(PAIRS)


class DataModule:
    """As Lightning has them."""

    def prepare_data(self):
        self.is_prepared = True

    def setup(self, stage):
        assert (self.is_prepared, stage) == (True, "fit")
        self.dataset = WHOLE

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=7, shuffle=True)


class Own(Sampler):
    """A user's sampler, of indices or of lists of them."""

    def __init__(self, entries):
        self.entries, self.n_passes = entries, 0

    def __iter__(self):
        self.n_passes += 1
        return iter(self.entries)

    def __len__(self):
        return len(self.entries)


class FirstBatches(BatchSampler):
    def __iter__(self):
        return iter([list(range(50)), list(range(50, 100))])


def collated(change, **kwargs):
    return DataLoader(Made(), batch_size=30, collate_fn=lambda samples: change(*default_collate(samples)), **kwargs)


def everything(n):
    return n


def equal(samples, rows):
    """Whether samples are those in these rows of `WHOLE`."""
    rows = torch.as_tensor(list(rows))
    return torch.equal(samples.inputs, X[rows]) and torch.equal(samples.labels, Y[rows])


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


class TestNoTrace:
    def test_a_sampler_is_asked_through_a_copy_which_does_not_copy_the_dataset(self):
        class Stubborn(TensorDataset):
            def __reduce_ex__(self, protocol):
                raise TypeError("cannot be copied")

        sampler = Own(range(0, 120, 2))
        sampler.dataset = Stubborn(X, Y)
        assert equal(read_samples(DataLoader(sampler.dataset, sampler=sampler, batch_size=30)), range(0, 120, 2))
        assert sampler.n_passes == 0

    def test_the_users_loader_and_its_generator_are_left_alone_and_each_sample_is_read_once(self):
        class Loader(DataLoader):
            def __iter__(self):
                raise AssertionError("The user's loader must not be iterated.")

        generator, reads = torch.Generator().manual_seed(3), []
        dataset = Made(lambda i: reads.append(i) or PAIRS[i])
        loader = Loader(dataset, batch_size=30, shuffle=True, generator=generator, num_workers=2)
        before = generator.get_state()
        assert equal(read_samples(loader), range(120))
        assert torch.equal(generator.get_state(), before)
        assert reads == list(range(120))

    def test_what_a_dataset_opens_or_draws_stays_with_training(self):
        class Inner(Made):
            def __init__(self):
                super().__init__(length=60)
                self.handle, self.generator = None, torch.Generator()

            def __getitem__(self, i):
                self.handle = object()
                return X[i] + torch.randn(4, generator=self.generator), Y[i]

        class Outer(ConcatDataset):
            def __init__(self):
                super().__init__([Inner(), Inner()])
                self.rng, self.random, self.alone = np.random.default_rng(0), random.Random(0), Inner()

            def __getitem__(self, i):
                x, y = super().__getitem__(i)
                return x + self.rng.normal() + self.random.random() + self.alone[0][0], y

        dataset = Outer()
        inner = [*dataset.datasets, dataset.alone]
        before = [one.generator.get_state() for one in inner]
        states = dataset.rng.bit_generator.state, dataset.random.getstate()
        read_samples(dataset)
        assert [one.handle for one in inner] == [None] * 3
        assert all(torch.equal(one.generator.get_state(), state) for one, state in zip(inner, before, strict=True))
        assert (dataset.rng.bit_generator.state, dataset.random.getstate()) == states

    def test_what_a_dataset_closes_in_the_end_stays_open(self):
        class File(Made):
            def __init__(self):
                super().__init__()
                self.closed = []

            def __del__(self):
                self.closed.append(True)

        dataset = File()
        closed = dataset.closed
        assert equal(read_samples(dataset), range(120))
        assert closed == []
        del dataset
        assert closed == [True, True]  # its own end, and after it the copy's

    def test_a_dataset_that_cannot_be_copied_is_read_itself(self):
        class Slots:
            __slots__ = ()
            __len__, __getitem__ = PAIRS.__len__, PAIRS.__getitem__

        class Delegating(Made):
            def __init__(self):
                super().__init__()
                self.inner = WHOLE

            def __getattr__(self, name):  # which a copy asks for `inner` before it has it
                return getattr(self.inner, name)

        assert equal(read_samples(Slots()), range(120))
        assert equal(read_samples(Delegating()), range(120))

    def test_global_states_are_put_back_also_after_an_exception(self, random_states):
        def fails(i):
            torch.rand(1), random.random(), np.random.rand()
            raise KeyError(i)

        before = random_states()
        with pytest.raises(KeyError):
            read_samples(Made(fails))
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
    class Splitting(DataModule):
        def setup(self, stage):
            self.dataset = torch.utils.data.random_split(WHOLE, [60, 60])[0]

    torch.manual_seed(7)
    expected = torch.utils.data.random_split(WHOLE, [60, 60])[0].indices
    torch.manual_seed(7)
    before = random_states()
    assert equal(read_samples(Splitting()), expected)
    assert random_states() == before


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
        ],
    )
    def test_labels_may_be_known_without_reading(self, dataset):
        input_key, label_key = (1, 0) if len(getattr(dataset, "tensors", ())) == 3 else (None, None)
        assert known_labels(dataset, label_key).tolist() == Y.tolist()
        samples = read_samples(dataset, 50, input_key=input_key, label_key=label_key)
        assert samples.is_stratified
        assert torch.equal(samples.rows, stratified_rows(120, 50, 0, Y))

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

    def test_unsigned_labels_are_taken_without_strata_and_lengths_that_differ_left_to_the_estimators(self):
        assert len(choose_among(X, Y.to(torch.uint32), lambda n: 50, 0).inputs) == 50
        samples = choose_among(X, Y[:7], lambda n: 50, 0)
        assert (len(samples.inputs), len(samples.labels)) == (120, 7)

    def test_as_many_as_are_wanted_are_asked_for_once(self):
        asked = []
        assert len(read_loader(DataLoader(WHOLE, sampler=CHOSEN), lambda n: asked.append(n) or 40).inputs) == 40
        assert asked == [90]

    def test_no_sample_at_most_is_refused(self):
        with pytest.raises(ValueError, match="`max_samples`"):
            read_samples((X, Y), 0)


class TestStreams:
    @pytest.mark.parametrize("source", [Stream(), DataLoader(Endless(), batch_size=32), Endless()])
    def test_the_first_samples_are_read(self, source):
        samples = read_samples(source, 70)
        assert equal(samples, range(70))
        assert samples.n_training == 70

    def test_the_subset_is_chosen_among_those_read(self):
        samples = read_loader(DataLoader(Endless(), batch_size=32), lambda n: 20, stream_limit=90)
        assert (samples.n_training, samples.is_stratified) == (90, True)
        assert torch.equal(samples.rows, stratified_rows(90, 20, 0, Y[:90]))
        assert equal(samples, samples.rows)

    def test_one_that_cannot_be_read_twice_is_left_as_it_is(self):
        class OneShot(Stream):
            def __iter__(self):
                return self.samples

        class Itself(OneShot):
            def __iter__(self):
                return self

            def __next__(self):
                return next(self.samples)

        for stream in (OneShot(iter(PAIRS)), Itself(iter(PAIRS))):
            with pytest.raises(ValueError, match=r"^`dataset`: .* gives the same iterator each time: .*Pass a pair"):
                read_samples(DataLoader(stream, batch_size=30))
            assert len(list(stream.samples)) == 120

    def test_the_subset_of_a_dataset_of_batches_is_chosen_after_reading(self):
        samples = read_samples(DataLoader(BATCHES, batch_size=None), 50)
        assert samples.n_training == 120
        assert torch.equal(samples.rows, stratified_rows(120, 50, 0, Y))
        assert equal(samples, samples.rows)


class TestBatches:
    def test_the_loaders_own_collate_function_makes_them_in_its_batch_size(self):
        sizes = []

        def collate(samples):
            sizes.append(len(samples))
            x, y = default_collate(samples)
            return x + 1, y

        for dataset in (WHOLE, Made(), Stream()):
            samples = read_samples(DataLoader(dataset, batch_size=50, collate_fn=collate))
            assert torch.equal(samples.inputs, X + 1)
        assert sizes == [50, 50, 20] * 3

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


class Unreadable:
    """As an image library has them, which no collate function knows."""


class Stuck(Own):
    def __deepcopy__(self, memo):
        raise RuntimeError("no copy")


NO_SAMPLE = "there must be at least one sample, got none."
ALONE = "the inputs of a batch must be a tensor, got "
REFUSED = {
    "words": (Made(lambda i: ("word", 0)), ALONE + "tuple"),
    "words as labels": (Made(lambda i: (X[i], "word")), "the labels of a batch must be a tensor, got tuple"),
    "words beside inputs": (Made(lambda i: ((X[i], "word"), 0)), ALONE + "list"),
    "words by name": (Made(lambda i: ({"x": X[i], "y": "word"}, 0)), ALONE + "dict"),
    "inputs of other lengths": (collated(lambda x, y: ((x, x[1:]), y)), r".*be equally long, got \(30, 4\), \(29, 4\)"),
    "other inputs in some batches": (collated(lambda x, y: ({f"{x[0]}": x}, y)), "all batches must have the same"),
    "inputs alone": (Made(X.__getitem__), r"batches must be \(inputs, labels\), .*got a Tensor"),
    "one tensor": (TensorDataset(X), "batches must be .*got a list of 1"),
    "three tensors": (TensorDataset(X, Y, Y), "batches must be .*`input_key=`, .* and `label_key=`, got a list of 3"),
    "numbers": ([1.0, 2.0, 3.0], "batches must be .*got a Tensor"),
    "arrays without places": ((X, Y, Y), "batches must be .*got a tuple of 3"),
    "arrays without names": (
        {"image": X, "target": Y},
        "batches are dicts with the keys 'image', 'target': name inputs",
    ),
    "dicts without names": (DICTS, "batches are dicts with the keys 'id', 'image', 'target': name inputs and labels"),
    "no batch": (collated(lambda x, y: None), "batches must be .*got a NoneType"),
    "lengths that differ": (collated(lambda x, y: (x, y[1:])), r".*be equally long, got \(30, 4\) and \(29,\)"),
    "one label a batch": (collated(lambda x, y: (x, y[0])), r".*be equally long, got \(30, 4\) and \(\)"),
    "shapes of inputs": (
        DataLoader(Made(lambda i: (X[i, : 2 + i // 60], 0)), batch_size=30),
        r"all inputs must have one shape, got \(2,\), \(3,\)",
    ),
    "shapes of labels": (
        DataLoader(Made(lambda i: (X[i], Y[i].expand(1 + i // 60))), batch_size=30),
        r"all labels must have one shape, got \(1,\), \(2,\)",
    ),
    "an empty dataset": (TensorDataset(X[:0], Y[:0]), NO_SAMPLE),
    "empty arrays": ((X[:0], Y[:0]), NO_SAMPLE),
    "an empty list": ([], NO_SAMPLE),
    "an empty stream": (Stream([]), NO_SAMPLE),
    "a sampler of nothing": (DataLoader(WHOLE, sampler=SubsetRandomSampler([])), NO_SAMPLE),
    "batches that are all dropped": (DataLoader(WHOLE, batch_size=500, drop_last=True), NO_SAMPLE),
    "no batches": (DataLoader(Made(length=0), sampler=[], batch_size=None), NO_SAMPLE),
    "nothing left": (collated(lambda x, y: (x[:0], y[:0])), NO_SAMPLE),
    "a sampler without a copy": (DataLoader(WHOLE, sampler=Stuck([0])), "Stuck cannot be copied to see .*: no copy"),
    "a sampler that ends": (DataLoader(WHOLE, sampler=(i for i in range(60))), "generator cannot be copied to see"),
    "no such input": (
        DICTS,
        "`input_key='x'` is not among the keys of a batch: 'id', 'image', 'target'",
        "x",
        "target",
    ),
    "no such label": (DICTS, "`label_key='y'` is not among the keys of a batch", "image", "y"),
    "one key": (DICTS, "batches are dicts with .*: name inputs and labels with `input_key=`.*`label_key=`", "image"),
    "no such place": (TensorDataset(X, Y, Y), "`label_key=3` is not a place in a batch of 3", 0, 3),
    "a place before the first": ((X, Y), "`input_key=-3` is not a place in a batch of 2", -3, 0),
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
        (Made(lambda i: (Unreadable(), 0)), TypeError, "Unreadable"),
        (Made(lambda i: (X[i], None)), TypeError, "NoneType"),
    ],
)
def test_what_is_of_another_kind_is_refused_by_name(source, error, message):
    with pytest.raises(error, match=message):
        read_samples(source)


def test_a_loader_is_refused_without_a_name_for_the_caller_to_add():
    with pytest.raises(UnreadableError, match=r"^there must be at least one sample, got none\.$"):
        read_loader(DataLoader(TensorDataset(X[:0], Y[:0])), everything)
