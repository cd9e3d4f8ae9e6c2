"""How often a sampler draws each sample, and what is left out of what it draws."""

import random

import numpy as np
import pytest
import torch
from problems import Made
from readable import Stream
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

from bu_torch.samples.balance import weights_of
from bu_torch.samples.reading import read_loader, read_samples
from bu_torch.samples.samples import choose_among, fewer_of, whole_samples

N = 240
Y = (torch.arange(N) % 12 == 0).long() + (torch.arange(N) % 4 == 1).long() * 2  # classes of 160, 20 and 60
X = torch.arange(N).float().unsqueeze(1).repeat(1, 3)
WHOLE = TensorDataset(X, Y)
OF_PLACE = 1.0 + torch.arange(N, dtype=torch.float64)
OF_CLASS = 1.0 / torch.bincount(Y).double()


def read(dataset=WHOLE, max_samples=None, seed=0, **options):
    return read_samples(DataLoader(dataset, batch_size=options.pop("batch_size", 30), **options), max_samples, seed)


def relative(weights):
    weights = torch.as_tensor(weights, dtype=torch.float64)
    return weights / weights.mean()


class Own(Sampler):
    """Gives what a function of its generator gives, anew in each pass."""

    def __init__(self, draw, seed=0):
        self.draw, self.generator = draw, torch.Generator().manual_seed(seed)

    def __iter__(self):
        return iter(self.draw(self.generator))

    def __len__(self):
        return N


def balanced(generator):
    return torch.multinomial(OF_CLASS[Y], N, replacement=True, generator=generator).tolist()


def without_preference(generator):
    return torch.randint(N, (N,), generator=generator).tolist()


class TestWeightedRandomSampler:
    @pytest.mark.parametrize("num_samples", [10, N, 1000])
    def test_tells_its_weights(self, num_samples):
        samples = read(sampler=WeightedRandomSampler(OF_CLASS[Y], num_samples))
        torch.testing.assert_close(relative(samples.weights), relative(OF_CLASS[Y]))
        assert torch.equal(samples.inputs, X)

    @pytest.mark.parametrize("replacement", [True, False])
    def test_samples_of_weight_zero_are_left_out(self, replacement):
        weights = torch.arange(N) * (torch.arange(N) % 3 > 0)
        samples = read(sampler=WeightedRandomSampler(weights, 50, replacement))
        kept = weights.nonzero().flatten()
        assert torch.equal(samples.rows, kept)
        assert torch.equal(samples.inputs, X[kept])
        assert len(samples.weights) == len(kept)
        if replacement:
            torch.testing.assert_close(relative(samples.weights), relative(weights[kept]))
        assert bool((samples.weights.diff() > 0).all())

    @pytest.mark.parametrize("num_samples", [20, 120, 200])
    def test_without_replacement_it_is_how_often_each_is_among_those_drawn(self, num_samples):
        sampler = WeightedRandomSampler(torch.linspace(0.2, 6, 230), num_samples, replacement=False)
        counts = torch.zeros(230)
        for _ in range(4000):
            counts[list(sampler)] += 1
        found = read(sampler=sampler).weights
        assert float(found.sum()) == pytest.approx(num_samples, rel=1e-6)  # they are shares of the passes
        np.testing.assert_allclose(found, counts / 4000, atol=0.045)  # four standard deviations and a bit
        assert abs(float((found - counts / 4000).mean())) < 0.003

    def test_of_batches(self):
        sampler = WeightedRandomSampler(OF_CLASS[Y], N)
        blocks = BatchSampler(sampler, 30, drop_last=True)
        for options in ({"batch_sampler": blocks, "batch_size": 1}, {"sampler": blocks, "batch_size": None}):
            torch.testing.assert_close(relative(read(**options).weights), relative(OF_CLASS[Y]))

    @pytest.mark.parametrize("max_samples", [40, 100])
    @pytest.mark.parametrize("dataset", [WHOLE, [(x, y) for x, y in zip(X, Y, strict=True)]], ids=["at once", "a list"])
    def test_of_a_subset_they_stay_with_their_samples(self, dataset, max_samples):
        samples = read(dataset, max_samples, 3, sampler=WeightedRandomSampler(OF_PLACE, N))
        assert len(samples.inputs) == len(samples.weights) == max_samples
        assert torch.equal(samples.inputs[:, 0].long(), samples.rows)
        torch.testing.assert_close(relative(samples.weights), relative(OF_PLACE[samples.rows]))

    def test_that_it_balances_is_not_balanced_twice(self):
        samples = read(sampler=WeightedRandomSampler(OF_CLASS[Y], N))
        drawn = weights_of(samples.labels, None, samples.weights)
        torch.testing.assert_close(weights_of(samples.labels, "balanced", samples.weights), drawn)
        torch.testing.assert_close(weights_of(Y, "balanced"), drawn)


class TestOfOnesOwn:
    def test_one_that_balances_at_random_by_samples_or_by_batches(self, random_states):
        before, alone, batches = random_states(), Own(balanced), Own(lambda g: torch.tensor(balanced(g)).split(30))
        state = alone.generator.get_state()
        for samples in (read(sampler=alone), read(batch_sampler=batches, batch_size=1)):
            by_class = torch.bincount(samples.labels, relative(samples.weights))
            np.testing.assert_allclose(by_class / by_class.sum(), 1 / 3, atol=0.04)
        assert torch.equal(alone.generator.get_state(), state)
        assert random_states() == before

    def test_one_that_repeats_by_a_list(self):
        samples = read(sampler=[*range(N), *range(20), *range(20)])
        torch.testing.assert_close(relative(samples.weights), relative([3.0] * 20 + [1.0] * 220))

    def test_one_that_draws_anew_in_each_epoch_has_no_preference(self):
        """As trainers call `set_epoch`, so do the passes that are counted."""

        class ByEpoch(Own):
            epoch = 0

            def set_epoch(self, epoch):
                self.epoch = epoch

            def __iter__(self):
                return iter(without_preference(torch.Generator().manual_seed(self.epoch)))

        sampler = ByEpoch(None)
        assert read(sampler=sampler).weights is None
        assert sampler.epoch == 0

    def test_one_that_gives_the_same_again_is_passed_twice(self, tmp_path):
        class Counting(list):
            def __iter__(self):
                with (tmp_path / "passes").open("a") as file:  # a worker makes them
                    file.write("1")
                return super().__iter__()

        assert read(sampler=Counting(range(N))).weights is None
        assert 2 <= len((tmp_path / "passes").read_text()) <= 4  # it makes some in advance

    def test_one_that_changes_its_dataset_or_draws_by_a_closure_leaves_no_trace(self):
        drawn, data = random.Random(0), list(range(N))
        before = drawn.getstate()

        class Moving(list):
            def __iter__(self):
                data.append(0)
                return iter(self.draw())

        sampler = Moving(range(N))
        sampler.draw = lambda: drawn.sample(range(N), N)
        assert read(sampler=sampler).weights is None
        assert (drawn.getstate(), len(data)) == (before, N)

    def test_a_part_anew_each_time_is_read_as_a_whole(self):
        found = read(sampler=Own(lambda g: torch.randperm(N, generator=g)[: N // 5].tolist()))
        assert len(found.rows) > 0.9 * N
        assert found.weights is None

    def test_all_rare_ones_and_a_part_of_the_others(self):
        found = read(sampler=Own(lambda g: [*range(10), *(10 + torch.randperm(N - 10, generator=g)[:10]).tolist()]))
        rare = found.rows < 10
        assert int(rare.sum()) == 10
        assert float(found.weights[rare].sum() / found.weights.sum()) == pytest.approx(0.5, abs=1e-9)

    def test_one_without_an_end_is_read_for_an_epoch(self):
        class Endless(Sampler):
            def __iter__(self):
                while True:
                    yield from torch.randperm(N).tolist()

        loader = DataLoader(WHOLE, batch_size=10, sampler=Endless())
        assert len(read_loader(loader, lambda n: n, n_batches=3).rows) >= 30
        Endless.__len__ = lambda self: N
        assert len(read(sampler=Endless()).rows) == N

    def test_one_that_is_large_is_passed_few_times(self, monkeypatch, tmp_path):
        monkeypatch.setattr("bu_torch.samples.reading._MOST_DRAWS", 3 * N - 1)

        def counted(generator):
            with (tmp_path / "passes").open("a") as file:
                file.write("1")
            return balanced(generator)

        assert read(sampler=Own(counted)).weights is not None
        assert 2 <= len((tmp_path / "passes").read_text()) <= 4


@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler(WHOLE),
        RandomSampler(WHOLE, replacement=True, num_samples=1000),
        WeightedRandomSampler(torch.full((N,), 0.3), N),
        WeightedRandomSampler(OF_CLASS[Y], N, replacement=False),
        [*range(N), *range(N)],
        *(Own(without_preference, seed) for seed in range(10)),
    ],
)
def test_samplers_that_prefer_no_sample_give_no_weights(sampler):
    assert read(sampler=sampler).weights is None


def one_by_one(labels):
    """A dataset of which no attribute tells the labels."""
    return Made(lambda i: (X[i], labels[i]), N)


def streamed(labels):
    return Stream(list(zip(X, labels, strict=True)))


MARKED = torch.where(torch.arange(N) % 5 == 2, -100, Y)
KEPT = torch.arange(N)[torch.arange(N) % 5 != 2]


class TestIgnoredLabels:
    @pytest.mark.parametrize(
        "source",
        [
            TensorDataset(X, MARKED),
            one_by_one(MARKED),
            DataLoader(streamed(MARKED), batch_size=32),
            (X, MARKED),
            (X, MARKED.unsqueeze(1)),
            (X, MARKED.double()),
            (X, MARKED.bfloat16()),
            (X, MARKED.to(torch.int8)),
        ],
        ids=["at once", "one by one", "a stream", "a pair", "a column", "double", "bfloat16", "int8"],
    )
    def test_are_left_out_and_counted(self, source):
        samples = read_samples(source)
        assert samples.n_ignored == 48
        assert torch.equal(samples.inputs, X[KEPT])
        assert torch.equal(samples.labels.flatten().long(), Y[KEPT])
        assert torch.equal(samples.rows, KEPT)

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.bool])
    def test_labels_without_a_sign_have_none(self, dtype):
        labels = (torch.arange(N) % 2 * (1 if dtype is torch.bool else 156)).to(dtype)  # -100 as a byte
        assert choose_among(X, labels, lambda n: n, 0).n_ignored == 0
        few = choose_among(X, labels, lambda n: 50, 0)
        assert few.is_stratified
        assert torch.equal(few.labels.long(), labels.long()[few.rows])

    def test_weights_stay_with_their_samples(self):
        samples = read(one_by_one(MARKED), sampler=WeightedRandomSampler(OF_PLACE, N))
        torch.testing.assert_close(relative(samples.weights), relative(OF_PLACE[KEPT]))

    def test_if_all_are_it_is_refused(self):
        with pytest.raises(ValueError, match="all 240 labels are -100, which torch's losses ignore"):
            read(TensorDataset(X, torch.full((N,), -100)))

    def test_of_what_a_user_gives_the_places_are_the_users(self):
        whole = whole_samples(X.numpy(), MARKED.numpy(), OF_PLACE.numpy())
        assert (whole.n_training, whole.n_ignored) == (len(KEPT), 48)
        for n_samples in (N, 50):
            samples = fewer_of(whole, n_samples, 1)
            assert samples.n_ignored == 48
            assert torch.equal(samples.inputs[:, 0].long(), samples.rows)
            assert torch.equal(samples.weights, OF_PLACE[samples.rows])
            assert torch.equal(samples.labels, Y[samples.rows])

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((X, Y[:7]), "`labels` must have one entry a sample, 240, got 7"),
            ((X, Y, torch.zeros(N)), "`sample_weight` must be positive and finite, got 0.0 in 240 of 240"),
        ],
    )
    def test_what_does_not_fit_is_refused_by_name(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            whole_samples(*arguments)


@pytest.mark.parametrize("dataset", [WHOLE, one_by_one(Y), streamed(Y)], ids=["at once", "one by one", "a stream"])
@pytest.mark.parametrize("n_wanted", [N, 50])
def test_each_batch_passes_a_transform_once(dataset, n_wanted):
    seen = []

    def transform(batch):
        seen.extend(batch[0])
        return batch[0] / 255, batch[1]

    loader = DataLoader(dataset, batch_size=30, shuffle=dataset is WHOLE)
    samples = read_loader(loader, lambda n: n_wanted, transform=transform)
    torch.testing.assert_close(samples.inputs, X[samples.rows] / 255)
    assert torch.equal(samples.labels, Y[samples.rows])
    assert len(samples.rows) == n_wanted
    assert len(seen) == (N if isinstance(dataset, IterableDataset) else n_wanted)
