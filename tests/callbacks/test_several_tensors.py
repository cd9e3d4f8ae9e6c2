"""Batches of several tensors: texts with masks, tables with categories, images with tables."""

from functools import partial

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from problems import Made, assert_same_checks, fit_again
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

from bu_torch import BoundaryUncertaintyMonitor

N, LENGTH, PAD = 90, 8, 0
DRAW = torch.Generator().manual_seed(0)
Y = torch.arange(N) % 3
LENGTHS = torch.randint(4, LENGTH + 1, (N,), generator=DRAW)
MASK = (torch.arange(LENGTH) < LENGTHS.unsqueeze(1)).long()
IDS = (torch.randint(1, 10, (N, LENGTH), generator=DRAW) + 10 * Y.unsqueeze(1)) * MASK
NUMBERS = torch.randn(N, 2, generator=DRAW) + Y.unsqueeze(1)
CATEGORIES = torch.stack((Y + torch.randint(0, 2, (N,), generator=DRAW), torch.randint(5, 30, (N,), generator=DRAW)), 1)

made = partial(Made, length=N)
Encoding = type("Encoding", (dict,), {})  # of another class, as tokenizers give
GOT = []  # what networks were called with


class Module(pl.LightningModule):
    """Trains without its inputs, but for a look at shorter ones: batches may have any form."""

    def __init__(self, n_words, n_columns):
        super().__init__()
        self.embed, self.out = nn.Embedding(n_words, n_columns), nn.Linear(8, 3)

    def training_step(self, batch, batch_idx):
        if isinstance(batch, Encoding):
            self(**{name: batch[name][:, :4] for name in ("input_ids", "attention_mask")})
        return self.out.weight.square().sum()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.02)


class Text(Module):
    def __init__(self):
        super().__init__(40, 8)

    def forward(self, input_ids, attention_mask, token_type_ids=None, labels=None):
        GOT.append((input_ids, attention_mask))
        mask = attention_mask.unsqueeze(2)
        return self.out((self.embed(input_ids) * mask).sum(1) / mask.sum(1))


class Stacked(Text):
    def forward(self, both):
        return super().forward(both[:, 0], both[:, 1])


class Table(Module):
    def __init__(self):
        super().__init__(30, 3)

    def forward(self, numbers, categories):
        GOT.append((numbers, categories))
        return self.out(torch.cat((numbers, self.embed(categories).flatten(1)), 1))


def cut(samples):
    """Padded to the longest of the batch alone."""
    batch = default_collate(samples)
    length = int(batch["attention_mask"].sum(1).max())
    return Encoding({name: value[:, :length] if value.ndim == 2 else value for name, value in batch.items()})


def run(folder, module, data, collate=None, **settings):
    GOT.clear()
    monitor = BoundaryUncertaintyMonitor(n_neighbors=10, n_draws=2, **settings)
    fit_again(folder, monitor, module=module, data=DataLoader(data, 16, collate_fn=collate), max_epochs=2)
    return monitor.history


def named(i):
    return {"input_ids": IDS[i], "attention_mask": MASK[i], "place": i, "labels": Y[i]}


IN_ORDER = TensorDataset(IDS, MASK, Y)
TEXTS = {
    "named": (made(named), None),
    "of its own length": (made(named), cut),
    "in order": (IN_ORDER, None),
    "a pair with names": (made(lambda i: ({"attention_mask": MASK[i], "input_ids": IDS[i]}, Y[i])), None),
    "truth values": (TensorDataset(IDS, MASK.bool(), Y), None),
}


@pytest.fixture(scope="module")
def of_one_tensor(tmp_path_factory):
    both = TensorDataset(torch.stack((IDS, MASK), 1), Y)
    return run(tmp_path_factory.mktemp("one"), Stacked, both, perturbation="tokens")


@pytest.mark.parametrize(("data", "collate"), list(TEXTS.values()), ids=list(TEXTS))
def test_texts_with_masks_are_measured_as_one_tensor_of_both(tmp_path, of_one_tensor, data, collate, recwarn):
    assert_same_checks(run(tmp_path, Text, data, collate), of_one_tensor)
    assert all(torch.equal(mask.bool(), ids != PAD) for ids, mask in GOT)
    assert not [one for one in recwarn if "the network gets" in str(one.message)]


def test_numbers_move_toward_a_neighbour_and_categories_are_taken_from_it(tmp_path):
    run(tmp_path, Table, TensorDataset(NUMBERS, CATEGORIES, Y), averaging=None)
    numbers, categories = (torch.cat(parts)[-2 * N :] for parts in zip(*GOT, strict=True))
    assert categories.dtype == torch.int64
    # Some sample lies on the line, and has each category that is not the sample's own.
    steps, ways = (numbers - NUMBERS.repeat(2, 1)).unsqueeze(1), NUMBERS - NUMBERS.repeat(2, 1).unsqueeze(1)
    part = (steps * ways).sum(dim=2) / ways.square().sum(dim=2)
    is_on_line = (part.unsqueeze(2) * ways - steps).norm(dim=2) < 1e-5
    kept = (categories == CATEGORIES.repeat(2, 1)).unsqueeze(1)
    has_it = ((categories.unsqueeze(1) == CATEGORIES) | kept).all(dim=2)
    assert (is_on_line & (part > 0.299) & (part < 0.701) & has_it).any(dim=1).all()
    assert N / 2 < (~kept).sum() < 2 * N


class Scaled(Table):
    def forward(self, numbers, factor):
        return self.out(numbers.repeat(1, 4) * factor.unsqueeze(1))

    def training_step(self, batch, batch_idx):
        return self(*batch[:2]).square().mean()


def test_one_number_a_sample_may_be_an_input(tmp_path):
    assert len(run(tmp_path, Scaled, TensorDataset(NUMBERS, NUMBERS[:, 0], Y))) == 2


class Normed(nn.BatchNorm1d):
    def forward(self, tree):
        return torch.cat((tree["categories"], super().forward(tree["numbers"])), 1)


def test_functions_of_ones_own_get_and_give_the_tensors_as_the_network_gets_them(tmp_path):
    def perturbation(tree, distance, generator):
        return {"categories": tree["categories"], "numbers": tree["numbers"] + 100}

    one, five, extractor = CATEGORIES[:, :1], NUMBERS[:, [0, 1, 0, 1, 0]], Normed(5)
    data = made(lambda i: {"categories": one[i], "numbers": five[i], "labels": Y[i]})
    run(tmp_path, Table, data, perturbation=perturbation, feature_extractor=extractor)
    numbers, categories = (torch.cat(parts)[-2 * N :] for parts in zip(*GOT, strict=True))
    assert torch.equal(categories, one.repeat(2, 1))
    assert torch.equal(numbers, five.repeat(2, 1) + 100)
    assert extractor.training
    assert extractor.num_batches_tracked == 0  # a copy ran, in eval mode


@pytest.mark.parametrize(
    ("module", "data", "settings", "message"),
    [
        (Text, IN_ORDER, {"input_key": 0, "label_key": 2}, r"`input_key=\[...\]`"),
        (Table, made(lambda i: {"a": NUMBERS[i], "b": CATEGORIES[i], "y": Y[i]}), {}, "name inputs and labels"),
        (Table, TensorDataset(NUMBERS, CATEGORIES, Y), {"perturbation": "random"}, "\\[1\\] hold integers"),
        (Table, made(lambda i: {"a": IDS[i], "idx": i, "labels": Y[i]}), {"perturbation": "tokens"}, "idx.*input_key"),
    ],
)
def test_what_cannot_be_told_is_refused_with_the_way_out(tmp_path, module, data, settings, message):
    with pytest.raises(MisconfigurationException, match=message):
        run(tmp_path, module, data, **settings)
