"""The reader of samples: every kind of dataset, sampler and batch, without a trainer."""

import itertools
import random
from functools import partial

import numpy as np
import pytest
import torch
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from problems import Augmented
from readable import BATCHES, PAIRS, WHOLE, Endless, Made, Stream, X, Y, equal
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from bu_torch.samples.reading import read_few, read_loader, read_samples
from bu_torch.samples.samples import Keys, choose_among, stratified_rows, subsample, whole_samples

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


def in_batches(sampler):
    return BatchSampler(sampler, 30, drop_last=False)


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
    "a dataset, by lists": (DataLoader(WHOLE, sampler=in_batches(RandomSampler(WHOLE)), batch_size=None), {}),
}


@pytest.mark.parametrize(("source", "options"), SOURCES.values(), ids=SOURCES)
def test_samples_are_read_in_order_wherever_they_are(source, options, random_states):
    before = random_states()
    samples = read_samples(source, **options)
    assert equal(samples, range(120))
    assert samples.rows.tolist() == list(range(120))
    assert (samples.rows.dtype, samples.n_training) == (torch.int64, 120)
    assert random_states() == before


@pytest.mark.parametrize("dataset", [Augmented(), DataLoader(Augmented(), batch_size=7, shuffle=True, num_workers=1)])
def test_random_augmentation_is_read_at_the_same_draw_in_each_run(dataset):
    first = read_samples(dataset, seed=1)
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    assert torch.equal(first.inputs, torch.stack([Augmented()[i][0] for i in range(120)]))
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
    samples = read_loader(loader, 20, keys=Keys(), stream_limit=90)
    assert samples.n_training == n_read
    assert torch.equal(samples.rows, stratified_rows(n_read, 20, 0, Y[:n_read]))
    assert equal(samples, samples.rows)


class FirstBatches(BatchSampler):
    def __iter__(self):
        return itertools.islice(super().__iter__(), 3)


OF_PLACE = 1.0 + torch.arange(120, dtype=torch.float64)
CHOSEN, IN_ORDER = SubsetRandomSampler(range(5, 95)), in_batches(SequentialSampler(WHOLE))
OTHER_PROCESS = DistributedSamplerWrapper(CHOSEN, num_replicas=2, rank=0)
VISITED = {
    "at random": ({"sampler": RandomSampler(WHOLE, num_samples=30), "batch_size": 30}, range(120)),
    "in order, the rest dropped": ({"batch_size": 50, "drop_last": True}, range(100)),
    "a share of several processes": ({"sampler": DistributedSampler(WHOLE, 2, 1), "batch_size": 30}, range(120)),
    "a part in batches": ({"batch_sampler": in_batches(CHOSEN)}, range(5, 95)),
    "a part in lists": ({"sampler": in_batches(CHOSEN), "batch_size": None}, range(5, 95)),
    "a part, distributed by Lightning": ({"sampler": OTHER_PROCESS, "batch_size": 30}, range(5, 95)),
    "its batches": ({"batch_sampler": in_batches(OTHER_PROCESS)}, range(5, 95)),
    "an array": ({"sampler": np.arange(94, 4, -1), "batch_size": 30}, range(5, 95)),
    "a batch sampler that leaves out": ({"batch_sampler": FirstBatches(range(120), 30, False)}, range(90)),
    "one that Lightning has distributed": ({"batch_sampler": FirstBatches(OTHER_PROCESS, 30, False)}, range(5, 95)),
    "of several processes": ({"batch_sampler": FirstBatches(DistributedSampler(WHOLE, 2, 1), 40, False)}, range(120)),
    "each drawn once": ({"sampler": WeightedRandomSampler(OF_PLACE, 120, False), "batch_size": 30}, range(120)),
    "weights, some 0": ({"sampler": WeightedRandomSampler([1.0] * 70 + [0.0] * 50, 99), "batch_size": 30}, range(70)),
    "batches that overlap": ({"batch_sampler": [(7, 3, 6), torch.tensor([3, 8]), np.array([9])]}, [3, 6, 7, 8, 9]),
    "batches without an end": ({"batch_sampler": itertools.cycle([[7, 3], [9]])}, [3, 7, 9]),
    "a sampler of tensors": ({"sampler": [torch.tensor([2, 1]), torch.tensor([0])], "batch_size": None}, range(3)),
}


@pytest.mark.parametrize("dataset", [WHOLE, Made()], ids=["at once", "one by one"])
@pytest.mark.parametrize(("options", "rows"), VISITED.values(), ids=VISITED)
def test_only_samples_that_the_loader_visits_are_read(dataset, options, rows):
    if options.get("batch_size", 0) is None and dataset is not WHOLE:
        dataset = Made(lambda rows: (X[rows], Y[rows]))
    samples = read_samples(DataLoader(dataset, **options))
    assert equal(samples, rows)
    assert (samples.rows.tolist(), samples.n_training, samples.weights) == (list(rows), len(rows), None)


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
    assert equal(read_loader(loader, keys=Keys(), n_batches=2), rows)


def test_indices_need_not_be_numbers():
    by_name = {f"image {i:03d}": PAIRS[i] for i in range(120)}
    samples = read_samples(DataLoader(Made(by_name.__getitem__), sampler=sorted(by_name, reverse=True), batch_size=30))
    assert equal(samples, range(120))
    few = read_samples(DataLoader(by_name, sampler=sorted(by_name)[50:70], batch_size=30), 5)
    assert (len(few.inputs), few.rows, few.n_training) == (5, None, 20)
    queries = [{"place": i} for i in range(120)]
    assert equal(read_samples(DataLoader(Made(lambda query: PAIRS[query["place"]]), sampler=queries)), range(120))


@pytest.mark.parametrize("max_samples", [None, 40])
@pytest.mark.parametrize("dataset", [WHOLE, PAIRS], ids=["at once", "a list"])
def test_weights_are_those_of_the_sampler_and_stay_with_their_samples(dataset, max_samples):
    sampler = WeightedRandomSampler(OF_PLACE, 50)
    for options in ({"sampler": sampler, "batch_size": 30}, {"batch_sampler": in_batches(sampler)}):
        samples = read_samples(DataLoader(dataset, **options), max_samples, 3)
        assert torch.equal(samples.inputs, X[samples.rows])
        assert torch.equal(samples.weights, OF_PLACE[samples.rows])


MARKED = torch.where(torch.arange(120) % 5 == 2, -100, Y)
KEPT = torch.arange(120)[MARKED >= 0]


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
        few = choose_among(X, labels, 50, 0)
        assert few.n_ignored == 0
        assert torch.equal(few.labels.long(), labels.long()[few.rows])

    def test_of_what_a_user_gives_the_places_are_the_users(self):
        few = subsample(whole_samples(X.numpy(), MARKED.numpy(), OF_PLACE.numpy()), 50, 1)
        assert torch.equal(few.inputs, X[few.rows])
        assert torch.equal(few.weights, OF_PLACE[few.rows])
        assert torch.equal(few.labels, Y[few.rows])

    def test_a_few_show_what_samples_are_like_though_all_are_ignored(self):
        few = read_few(partial(read_loader, keys=Keys()), DataLoader(TensorDataset(X, torch.full((120,), -100))))
        assert (few.inputs.shape, few.n_training) == ((8, 4), 120)


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
    samples = read_samples(collated(change, sampler=WeightedRandomSampler(OF_PLACE, 120)))
    assert f"{n_left} of the 120" in " ".join(str(one.message) for one in recwarn)
    assert (samples.inputs.shape, samples.n_training) == ((n_left, 4), 120)
    assert samples.rows is samples.weights is None


def test_batches_of_a_stream_that_are_none_are_counted():
    batches = [(X[:70], Y[:70]), None, (X[70:], Y[70:]), None]
    with pytest.warns(UserWarning, match="2 batches that are None"):
        assert equal(read_samples(DataLoader(Stream(batches), batch_size=None)), range(120))


WAY_OUT = r".*Pass a pair \(inputs, labels\)"
REFUSED = {
    "other inputs in some batches": (collated(lambda x, y: ({f"{x[0]}": x}, y)), {}, f"same inputs{WAY_OUT}"),
    "three tensors": (TensorDataset(X, Y, Y), {}, f"list of 3: .*`input_key=`.* and `label_key=`{WAY_OUT}"),
    "dicts without names": (DICTS, {}, f"'id', 'image', 'target'.*`input_key=`.* and `label_key=`{WAY_OUT}"),
    "shapes": (DataLoader(Made(lambda i: (X[i, : 2 + i // 60], 0)), 30), {}, rf"\(2,\), \(3,\){WAY_OUT}"),
    "nothing": (DataLoader(WHOLE, sampler=SubsetRandomSampler([])), {}, f"at least one sample{WAY_OUT}"),
    "no such input": (DICTS, {"input_key": "x", "label_key": "target"}, f"`input_key='x'`{WAY_OUT}"),
    "one place": (WHOLE, {"input_key": 1}, f"`input_key=`.* and `label_key=`{WAY_OUT}"),
    "other lengths": ((X, Y[1:]), {}, rf"\(120, 4\), \(119,\){WAY_OUT}"),
    "a number": (3, {}, "`dataset` .*int"),
    "an iterator": (iter(PAIRS), {}, "`dataset` .*list_iterator"),
    "loaders": ([DataLoader(WHOLE)] * 2, {}, "DataLoader"),
    "words as labels": ((X, ["a"] * 120), {}, "`labels`"),
    "words as inputs": (Made(lambda i: ("word", 0)), {}, "`inputs`"),
    "inputs of other lengths": (collated(lambda x, y: ((x, x[1:]), y)), {}, r"`inputs` .*\(30, 4\), \(29, 4\)"),
}


@pytest.mark.parametrize(("source", "keys", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_refused_by_name(source, keys, message):
    with pytest.raises((TypeError, ValueError), match=message):
        read_samples(source, **keys)
