"""Images and token ids: perturbed along the data, in a space that is chosen before training and kept in a resume."""

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from problems import Classifier, trainer
from scenarios import images, tokens
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyStopper, BoundaryUncertaintyStopping
from bu_torch.report import read_record

N_TOKENS = 60


class Module(Classifier):
    """What goes into its last layer tells the classes apart before training, and no more after a while."""

    def __init__(self):
        super().__init__(lr=0.5)
        torch.manual_seed(0)
        self.body = nn.Linear(36, 4)
        with torch.no_grad():
            self.body.weight[0] = torch.tensor([1.0, 1, 1, -1, -1, -1]).repeat(6) / 6
        self.net = nn.Linear(4, 2)

    def forward(self, x):
        return self.net(self.body(x.flatten(1)))


class Plain(Module):
    """What goes into its last layer tells nothing before training."""

    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.body.weight)


class OfTokens(Classifier):
    """What goes into its last layer is the subject, where it is pretrained, or nothing."""

    def __init__(self, is_pretrained=False):
        super().__init__(lr=0.5)
        torch.manual_seed(0)
        self.embedding = nn.Embedding(N_TOKENS, 4)
        self.net = nn.Linear(4, 2)
        with torch.no_grad():
            self.embedding.weight.zero_()
            if is_pretrained:
                self.embedding.weight[N_TOKENS // 2 :, 0] = 1.0

    def forward(self, x):
        assert not x.is_floating_point()
        return self.net(self.embedding(x).mean(dim=1))


def pretrained():
    return OfTokens(is_pretrained=True)


FEW = {"n_neighbors": 20, "n_draws": 2}
TOKENS = {**FEW, "perturbation": "tokens"}
# By the module: samples, and settings.
KINDS = {Module: (images, FEW), Plain: (images, FEW), OfTokens: (tokens, TOKENS), pretrained: (tokens, TOKENS)}


def batches(samples=images):
    return DataLoader(TensorDataset(*samples(160)), batch_size=40)


def fit(folder, callback, module=Module, epochs=4, ckpt_path=None, trained=None):
    made = trainer(folder, callback, ModelCheckpoint(folder, save_last=True), max_epochs=epochs)
    made.fit(trained or module(), batches(KINDS[module][0]), ckpt_path=ckpt_path)
    return callback


@pytest.mark.parametrize(
    ("module", "space", "ends"),
    [
        *((Module, space, (2, 4)) for space in (None, "module", "body")),
        *((pretrained, space, (2, 4)) for space in (None, "module")),
        # Where the space is none of the network's, which knows the labels when the run resumes.
        *((module, None, (2, 4, 6)) for module in (Plain, OfTokens)),
    ],
)
def test_a_resumed_run_measures_in_the_space_that_was_chosen(tmp_path, module, space, ends):
    """Cut at the ends of these epochs: by then the network has been trained, and its features are others."""

    def part(name, epochs, ckpt_path=None):
        trained = module()
        extractor = nn.Sequential(nn.Flatten(), trained.body) if space == "body" else space  # is trained, too
        callback = BoundaryUncertaintyStopping(feature_extractor=extractor, **KINDS[module][1])
        return fit(tmp_path / name, callback, module, epochs, ckpt_path, trained)

    whole, last = part("whole", ends[-1]), None
    for end in ends:
        resumed = part(f"until {end}", end, last)
        last = tmp_path / f"until {end}" / "last.ckpt"
    assert resumed.history == whole.history
    assert resumed.best_epoch == whole.best_epoch
    assert read_record(resumed.record_path).n_not_compared == 0


@pytest.mark.parametrize(
    ("samples", "module", "later", "settings"),
    [(images, Module, Plain, {**FEW, "feature_extractor": "module"}), (tokens, pretrained, pretrained, TOKENS)],
)
def test_the_loop_goes_on_in_the_same_space(samples, module, later, settings):
    stopper, again = (BoundaryUncertaintyStopper(*samples(160), **settings) for _ in range(2))
    stopper.check(module())
    again.load_state_dict(stopper.state_dict())
    again.check(later())
    stopper.check(later())
    assert again.history == stopper.history
    assert again.best_epoch == stopper.best_epoch
