"""Hugging Face's `Trainer` without an evaluation set.

The model is any module whose output has `logits`, as those of transformers do. Here it is a small one, so that nothing
is downloaded.

    pip install transformers accelerate
    python examples/recipes/huggingface_trainer.py
"""

import tempfile

import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

from bu_torch import BoundaryUncertaintyStopper
from bu_torch.integrations.transformers import BoundaryUncertaintyCallback


class Model(nn.Module):
    """Gives what a classifier of transformers gives."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> SequenceClassifierOutput:
        logits = self.net(inputs)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def moons(n_samples: int = 400, flipped: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two moons, with a share of the labels flipped."""
    inputs, labels = make_moons(n_samples, noise=0.25, random_state=seed)
    is_flipped = torch.rand(n_samples, generator=torch.Generator().manual_seed(seed)) < flipped
    labels = torch.tensor(labels)
    return torch.tensor(inputs, dtype=torch.float32), torch.where(is_flipped, 1 - labels, labels)


def main(epochs: int = 200) -> BoundaryUncertaintyStopper:
    inputs, labels = moons()
    torch.manual_seed(0)
    model, callback = Model(), BoundaryUncertaintyCallback(patience=20)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=50,
            learning_rate=0.01,
            lr_scheduler_type="constant",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            use_cpu=True,
        )
        samples = [{"inputs": x, "labels": y} for x, y in zip(inputs, labels, strict=True)]
        Trainer(model, arguments, train_dataset=samples, callbacks=[callback]).train()
    stopper = callback.stopper
    print(stopper.stopping_reason)
    new_inputs, new_labels = moons(2000, flipped=0, seed=1)
    with torch.no_grad():
        error = (model(new_inputs).logits.argmax(dim=1) != new_labels).float().mean().item()
    print(f"test error of the kept epoch: {error:.3f} (epoch {stopper.best_epoch})")
    return stopper


if __name__ == "__main__":
    main()
