"""`lightning.pytorch` and `pytorch_lightning`: either, both, and in any order of imports."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from problems import fit

from bu_torch.callbacks import BoundaryUncertaintyStopping, lightning_trees

SCRIPT = """
import sys
{first}
{second}
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
    def forward(self, x):
        return self.net(x)
    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

torch.manual_seed(0)
labels = torch.arange(120) % 3
loader = DataLoader(TensorDataset(torch.randn(120, 4) + labels.unsqueeze(1), labels), batch_size=20, shuffle=True)
stopping = BoundaryUncertaintyStopping(patience=2, n_neighbors=20)
options = dict(accelerator="cpu", logger=False, default_root_dir={folder!r}, enable_progress_bar=False)
trainer = pl.Trainer(max_epochs=3, callbacks=stopping, enable_model_summary=False, **options)
trainer.fit(Module(), loader)
assert torch.load(stopping.best_model_path, weights_only=True)["epoch"] == stopping.best_epoch
assert isinstance(stopping, pl.Callback)
names = [type(callback).__name__ for callback in trainer.callbacks]
stopper, keeper = trainer.callbacks[names.index("VerdictBearer")], trainer.callbacks[names.index("Keeper")]
assert isinstance(stopper, pl.callbacks.EarlyStopping) and isinstance(keeper, pl.callbacks.ModelCheckpoint)
assert trainer.checkpoint_callback is keeper
resumed = BoundaryUncertaintyStopping(patience=3, n_neighbors=20)
again = pl.Trainer(max_epochs=4, callbacks=[resumed], enable_model_summary=False, **options)
again.fit(Module(), loader, ckpt_path=keeper.best_model_path)
assert [entry["epoch"] for entry in resumed.history[: stopping.best_epoch]] == list(range(stopping.best_epoch))
try:
    BoundaryUncertaintyStopping(patience=-1)
except pl.utilities.exceptions.MisconfigurationException:
    print("fine")
{last}
"""
ALONE = "assert 'lightning' not in sys.modules"
OURS = "from bu_torch import BoundaryUncertaintyStopping"
THEIRS = "import pytorch_lightning as pl"
NO_LIGHTNING = """
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "lightning":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
import importlib.machinery
sys.meta_path.insert(0, Nothing())
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "lightning" else find_spec(name, package)
"""


@pytest.mark.parametrize(
    ("first", "second", "last"),
    [
        pytest.param(NO_LIGHTNING + OURS, THEIRS, ALONE, id="pytorch_lightning alone"),
        pytest.param(THEIRS, OURS, ALONE, id="theirs first", marks=pytest.mark.slow),
        pytest.param("import lightning.pytorch", OURS + "\n" + THEIRS, "", id="both", marks=pytest.mark.slow),
    ],
)
def test_a_trainer_of_pytorch_lightning_is_stopped_by_its_own_classes(tmp_path, first, second, last):
    pytest.importorskip("pytorch_lightning")
    script = SCRIPT.format(first=first, second=second, last=last, folder=str(tmp_path))
    command = [sys.executable, "-W", "ignore", "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path.cwd())
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip().endswith("fine")


def test_ours_may_be_imported_first(tmp_path, capsys):
    """As here, where `lightning` is there too."""
    pytest.importorskip("pytorch_lightning")
    exec(SCRIPT.format(first=OURS, second=THEIRS, last="", folder=str(tmp_path)), {})  # noqa: S102
    assert capsys.readouterr().out.strip().endswith("fine")


@pytest.mark.parametrize(("version", "is_taken"), [("2.6.3", False), ("2.6.5", False), ("2.6.6", True), ("3.0", True)])
def test_versions_with_known_holes_are_refused(tmp_path, monkeypatch, version, is_taken):
    lightning_trees._library.cache_clear()
    monkeypatch.setattr(lightning_trees.metadata, "version", lambda name: version)
    refusal = pytest.raises(MisconfigurationException, match=f"must be 2.6.6 or newer, got {version}: .*GHSA-qqmf")
    with nullcontext() if is_taken else refusal:
        fit(tmp_path, BoundaryUncertaintyStopping(n_neighbors=20), max_epochs=1)
    lightning_trees._library.cache_clear()
