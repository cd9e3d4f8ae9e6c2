"""Samples that random augmentation changes are read again, as draws that repeat."""

import pytest
import torch
from problems import Augmented, Made, blobs
from torch.utils.data import DataLoader

from bu_torch.samples.reading import read_again, read_loader, with_readings
from bu_torch.samples.samples import fewer_of

X, Y = blobs()


def read(dataset, n=1000, collate_fn=None, **options):
    loader = DataLoader(dataset, 25, collate_fn=collate_fn)
    options = {"looks_for_augmentation": True, "seed": 3, **options}
    return read_loader(loader, lambda n_training: min(n, n_training), **options)


class Counted(Made):
    """Samples from a function of the index and of the number of times that it was read before."""

    def __init__(self, item):
        self.times = [0] * 120
        super().__init__(lambda i: item(i, self.count(i)))

    def count(self, i):
        self.times[i] += 1
        return self.times[i] - 1


class Own(Made):
    """Draws from a generator that it holds."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)
        super().__init__(lambda i: (X[i] + torch.randn(4, generator=self.generator), Y[i]))


@pytest.mark.parametrize("kind", [Augmented, Own])
def test_readings_differ_repeat_and_begin_alike(kind):
    samples = read(kind())
    three, two = read_again(samples, 3), read_again(samples, 2)
    assert three.readings.shape == (3, *samples.inputs.shape)
    assert torch.equal(three.readings[:2], two.readings)
    assert torch.equal(three.inputs, two.inputs)
    readings = [three.inputs, *three.readings]
    for place, one in enumerate(readings):
        assert not any((one == other).any(dim=1).any() for other in readings[:place])
    other = read_again(read(kind()), 3)
    assert torch.equal(other.readings, three.readings)


def test_readings_are_those_of_the_samples_also_of_some_of_them():
    shifted = Counted(lambda i, times: (X[i] + times, Y[i]))
    samples = read(shifted, 90)
    few = fewer_of(samples, 50, seed=0)
    again = read_again(few, 2)
    for offset, reading in enumerate((again.inputs, *again.readings)):
        assert torch.equal(reading, X[few.rows] + offset)
    part = again.at(torch.tensor([4, 1]))
    assert torch.equal(part.readings, again.readings[:, [4, 1]])
    assert shifted.times == [0] * 120  # nothing of the user's has moved


def test_token_ids_stay_ids_and_are_padded_to_one_length():
    def collate(batch):
        lengths = [len(ids) for ids, _ in batch]
        ids = torch.nn.utils.rnn.pad_sequence([ids for ids, _ in batch], batch_first=True)
        mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
        return {"ids": ids, "mask": mask.long()}, torch.stack([label for _, label in batch])

    def item(i):
        ids = torch.arange(1, 4 + i % 7)
        return ids[torch.rand(len(ids)) < 0.7], Y[i]

    again = read_again(read(Made(item), collate_fn=collate), 2)
    assert again.inputs.dtype == again.readings.dtype == torch.int64
    assert again.readings.shape[2:] == again.inputs.shape[1:]
    ids = again.packing.unpack(again.readings[0])["ids"]
    assert all(set(row[row > 0].tolist()) <= set(range(1, 4 + i % 7)) for i, row in enumerate(ids))


@pytest.mark.parametrize("change", [lambda i, times: (X[i] + times, (Y[i] + times) % 3), lambda i, times: 1 / 0])
def test_what_comes_later_is_told_too(change):
    """It differs as augmentation does when a few are read twice, and otherwise when all are."""
    later = Counted(lambda i, times: change(i, times) if i % 4 == 1 and times else (X[i] + times, Y[i]))
    samples = read(later)
    assert samples.is_random
    said = []
    assert with_readings(samples, 1, None, said.append) is samples
    assert "a further reading" in said[0]


def padded(samples):
    longest = max(i for i, _ in samples) + 1
    mask = torch.arange(longest) <= torch.tensor([[i] for i, _ in samples])
    return {"ids": mask * 7, "mask": mask.long()}, torch.tensor([label for _, label in samples])


BROKEN = torch.where(torch.arange(4) == 2, torch.nan, X)


@pytest.mark.parametrize(
    ("item", "collate_fn", "is_random"),
    [
        (lambda i, times: (X[i] + times * (i >= 110), Y[i]), None, True),  # the last class alone
        (lambda i, times: (BROKEN[i], Y[i]), None, False),
        (lambda i, times: (BROKEN[i] + times, Y[i]), None, True),
        (lambda i, times: (i, int(Y[i])), padded, False),
    ],
    ids=["some", "NaN", "also NaN", "padding"],
)
def test_augmentation_is_seen_where_it_is(item, collate_fn, is_random):
    assert read(Counted(item), collate_fn=collate_fn).is_random == is_random
