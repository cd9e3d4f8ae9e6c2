"""`lightning.pytorch` or `pytorch_lightning`: the tree that was imported first, and no trainers of the other."""

import pytest
from apart import run_apart

# What the process from which it is forked has imported is forgotten.
SCRIPT = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] in ("bu_torch", "lightning")]:
    del sys.modules[name]
import pytorch_lightning as pl
from bu_torch import BoundaryUncertaintyStopping
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
options = dict(accelerator="cpu", logger=False, default_root_dir={folder!r}, enable_model_summary=False)
trainer = pl.Trainer(max_epochs=3, callbacks=stopping, enable_progress_bar=False, **options)
assert "lightning" not in sys.modules
trainer.fit(Module(), loader)
assert torch.load(stopping.best_model_path, weights_only=True)["epoch"] == stopping.best_epoch
keeper = trainer.checkpoint_callback
assert isinstance(keeper, pl.callbacks.ModelCheckpoint) and "bu_torch" in type(keeper).__module__
resumed = BoundaryUncertaintyStopping(patience=3, n_neighbors=20)
again = pl.Trainer(max_epochs=4, callbacks=[resumed], enable_progress_bar=False, **options)
again.fit(Module(), loader, ckpt_path=keeper.best_model_path)
assert [entry["epoch"] for entry in resumed.history[: stopping.best_epoch]] == list(range(stopping.best_epoch))
try:
    BoundaryUncertaintyStopping(patience=-1)
except pl.utilities.exceptions.MisconfigurationException:
    print("fine")
"""


def test_a_trainer_of_pytorch_lightning_is_stopped_by_its_own_classes(tmp_path):
    pytest.importorskip("pytorch_lightning")
    file = tmp_path / "script.py"
    file.write_text(SCRIPT.format(folder=str(tmp_path)))
    codes, said = run_apart(file)
    assert codes == [0], said
    assert said.strip().endswith("fine")
