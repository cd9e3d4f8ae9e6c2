"""Images: perturbed along the data, in a space that is chosen before training and kept when a run resumes."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from problems import trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopper, BoundaryUncertaintyStopping, Signals
from bu_torch.report import read_record


def images(n=160, seed=0):
    """Bright on the left or on the right, in noise."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 2
    sides = torch.zeros(n, 1, 6, 6)
    sides[labels == 0, :, :, :3] = 1
    sides[labels == 1, :, :, 3:] = 1
    return sides + torch.randn(n, 1, 6, 6, generator=g), labels


class Module(pl.LightningModule):
    """What goes into its last layer tells the classes apart before training, and no more after a while."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(36, 4)
        with torch.no_grad():
            self.body.weight[0] = torch.tensor([1.0, 1, 1, -1, -1, -1]).repeat(6) / 6
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x.flatten(1)))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def fit(folder, callback, epochs=4, ckpt_path=None, **kwargs):
    made = trainer(folder, callback, ModelCheckpoint(folder, save_last=True), max_epochs=epochs, **kwargs)
    module = Module()
    if callback.feature_extractor == "body":
        callback.feature_extractor = Body(module)
    made.fit(module, DataLoader(TensorDataset(*images()), batch_size=40), ckpt_path=ckpt_path)
    return callback


class Body(nn.Module):
    """An extractor that is a part of the module, and is trained with it."""

    def __init__(self, module):
        super().__init__()
        self.body = module.body

    def forward(self, x):
        return self.body(x.flatten(1))


@pytest.mark.parametrize("space", [None, "module", "patches", "body"])
def test_a_resumed_run_measures_in_the_space_that_was_chosen(tmp_path, space):
    """By then the network has been trained, and its features are others."""

    def stopping():
        made = BoundaryUncertaintyStopping(n_neighbors=20, n_draws=2)
        made.feature_extractor = space
        return made

    whole = fit(tmp_path / "whole", stopping())
    fit(tmp_path / "part", stopping(), epochs=2)
    resumed = fit(tmp_path / "rest", stopping(), ckpt_path=tmp_path / "part" / "last.ckpt")
    assert resumed.history == whole.history
    assert resumed.best_epoch == whole.best_epoch


def test_the_log_and_the_record_say_what_was_chosen(tmp_path, caplog):
    with caplog.at_level("INFO", logger="lightning.pytorch"):
        callback = fit(tmp_path, BoundaryUncertaintyMonitor(n_neighbors=20), epochs=1)
    assert "Neighbours are found among the network's own features: left-out labels are predicted best" in caplog.text
    data = read_record(callback.record_path).data
    assert (data["space"], data["perturbation"]) == ("module", "neighbors")


def test_training_is_the_same_to_the_bit_without_the_callback(tmp_path):
    weights = []
    for callbacks in ([], [BoundaryUncertaintyMonitor(n_neighbors=20)]):
        module = Module()
        trainer(tmp_path, *callbacks, max_epochs=2).fit(module, DataLoader(TensorDataset(*images()), 40, shuffle=True))
        weights.append(module.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


class Plain(Module):
    """What goes into its last layer tells nothing before training."""

    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.body.weight.zero_()


@pytest.mark.parametrize("with_cache", [False, True])
def test_a_space_that_is_none_of_the_networks_is_kept_through_two_resumes(tmp_path, with_cache):
    """The network knows the labels by then, and must not be chosen."""
    settings = {"n_neighbors": 20, "n_draws": 2, "cache": tmp_path / "cache.npz" if with_cache else None}

    def part(folder, epochs, ckpt_path=None):
        callback = BoundaryUncertaintyStopping(**settings)
        saver = ModelCheckpoint(tmp_path / folder, save_last=True)
        made = trainer(tmp_path / folder, callback, saver, max_epochs=epochs)
        made.fit(Plain(), DataLoader(TensorDataset(*images()), batch_size=40), ckpt_path=ckpt_path)
        return callback

    whole = part("whole", 6)
    part("first", 2)
    part("second", 4, tmp_path / "first" / "last.ckpt")
    resumed = part("third", 6, tmp_path / "second" / "last.ckpt")
    assert resumed.history == whole.history
    assert resumed.best_epoch == whole.best_epoch
    assert resumed.tracker.checks.n_not_compared == 0


def test_the_loop_looks_at_no_network_that_may_have_learnt_the_labels():
    stopper = BoundaryUncertaintyStopper(*images(), n_neighbors=20, n_draws=1)
    stopper.check(Module())
    assert list(stopper._tracker.groundwork.signals.boundary.skills_) == ["inputs", "patches"]
    asked = BoundaryUncertaintyStopper(*images(), n_neighbors=20, n_draws=1, feature_extractor="module")
    asked.check(Module())
    again = BoundaryUncertaintyStopper(*images(), n_neighbors=20, n_draws=1, feature_extractor="module")
    again.load_state_dict(asked.state_dict())
    again.check(Plain())
    assert torch.equal(again._tracker.groundwork.perturbed_inputs, asked._tracker.groundwork.perturbed_inputs)
    assert again._tracker.checks.is_comparable


def test_features_of_a_network_are_not_cached(tmp_path):
    settings = {"feature_extractor": "module", "cache": tmp_path / "cache.npz"}
    with pytest.warns(UserWarning, match="differ from run to run: they are not kept in the cache"):
        fit(tmp_path, BoundaryUncertaintyMonitor(n_neighbors=20, **settings), epochs=1)
    assert not (tmp_path / "cache.npz").exists()


def test_a_state_of_others_is_refused_or_left():
    stopper = BoundaryUncertaintyStopper(*images(), n_neighbors=20, feature_extractor="module", n_draws=2)
    stopper.check(Module())
    state = stopper.state_dict()
    byte = torch.ones(1, dtype=torch.uint8)
    for wrong in ("many", {"votes": byte}, torch.ones(2), byte.view(1, 1), byte.expand(2**40), byte.to("meta")):
        with pytest.raises(ValueError, match="holds no state that this package wrote: expected `prepared`"):
            stopper.load_state_dict({**state, "checks": {**state["checks"], "prepared": wrong}})
    with pytest.raises(ValueError, match="expected `space`"):
        stopper.load_state_dict({**state, "checks": {**state["checks"], "space": "outer"}})
    whole = state["checks"]["prepared"]
    for crooked in (whole[:-100], whole[:0], torch.cat((whole[:5000], whole[5000:] ^ 1))):
        other = BoundaryUncertaintyStopper(*images(), n_neighbors=20, feature_extractor="module", n_draws=2)
        other.load_state_dict({**state, "checks": {**state["checks"], "prepared": crooked}})
        with pytest.warns(UserWarning, match="patience and the best epoch start anew"):
            other.check(Module())


def test_signals_of_images_are_moved_toward_their_neighbors():
    inputs, labels = images()
    signals = Signals(20, 2).fit(inputs, labels)
    steps = signals.perturbed_inputs.view(2, *inputs.shape) - inputs
    neighbors = signals.boundary.neighbors
    ways = inputs[neighbors[:, 1:6]] - inputs.unsqueeze(1)
    ratio = (steps[0].unsqueeze(1) / ways).flatten(2)
    assert ((ratio.amax(dim=2) - ratio.amin(dim=2)) < 1e-3).any(dim=1).all()


class Shifted(torch.utils.data.Dataset):
    """Images that are shifted at random each time they are read."""

    def __init__(self, reach):
        self.reach = reach

    def __len__(self):
        return 160

    def __getitem__(self, index):
        inputs, labels = images()
        return inputs[index].roll(int(torch.randint(-self.reach, self.reach + 1, ())), dims=1), labels[index]


@pytest.mark.parametrize("reach", [0, 2])
def test_random_augmentation_is_noticed_and_said_once(tmp_path, log, reach):
    made = trainer(tmp_path, BoundaryUncertaintyMonitor(n_neighbors=20, n_draws=1), max_epochs=1)
    made.fit(Module(), DataLoader(Shifted(reach), batch_size=40))
    assert log.text.count("a sample is another each time it is read (random augmentation)") == (reach > 0)


@pytest.mark.parametrize("kind", ["method", "function"])
def test_an_extractor_that_calls_the_module_leaves_it_as_it_was(tmp_path, kind):
    """In training mode, its batch norm would count the samples that are read."""

    class Normed(Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(36)

        def features(self, x):
            return self.norm(x.flatten(1))

        def forward(self, x):
            return self.head(self.body(self.features(x)))

    module = Normed()
    extractor = module.features if kind == "method" else lambda x: module.features(x)
    monitor = BoundaryUncertaintyMonitor(n_neighbors=20, feature_extractor=extractor)
    made = trainer(tmp_path, monitor, max_epochs=1)
    made.fit(module, DataLoader(TensorDataset(*images()), batch_size=40))
    assert int(module.norm.num_batches_tracked) == 4
