"""Text as token ids: `perturbation="tokens"` puts tokens of a near sentence in place of some.

With `--own`, two functions take the place of what is built in: `swap` puts a random token in one place of each
sentence, `share_of_tokens` counts tokens to say what is near.

    python examples/recipes/text_tokens.py
    python examples/recipes/text_tokens.py --own
"""

import argparse
from typing import Any

import torch
from torch import Tensor, nn

from bu_torch import BoundaryUncertaintyStopper

N_TOKENS, LENGTH = 40, 10


def sentences(n_sentences: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two subjects: tokens of one half of the vocabulary are more frequent in each."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n_sentences) % 2
    tokens = torch.randint(0, N_TOKENS // 2, (n_sentences, LENGTH), generator=generator)
    is_second_half = torch.rand(tokens.shape, generator=generator) < 0.35 + 0.3 * labels.unsqueeze(1)
    return tokens + (N_TOKENS // 2) * is_second_half, labels


def swap(tokens: Tensor, nearest_distance: Tensor, generator: torch.Generator) -> Tensor:
    """Another token in one place; one token is the least there is, so the distance is not needed."""
    place = torch.randint(0, tokens.shape[1], (len(tokens), 1), generator=generator)
    return tokens.scatter(1, place, torch.randint(0, N_TOKENS, place.shape, generator=generator))


def share_of_tokens(tokens: Tensor) -> Tensor:
    return nn.functional.one_hot(tokens, N_TOKENS).float().mean(dim=1)


class Classifier(nn.Module):
    """Mean of embeddings, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(N_TOKENS, 32)
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(self.embedding(tokens))


OWN = {"perturbation": swap, "feature_extractor": share_of_tokens}


def main(epochs: int = 60, **options: Any) -> dict[str, float]:
    torch.manual_seed(0)
    (tokens, labels), (new_tokens, new_labels) = sentences(400, seed=0), sentences(2000, seed=1)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    stopper = BoundaryUncertaintyStopper(tokens, labels, **(options or {"perturbation": "tokens"}))
    for _ in range(epochs):
        for rows in torch.randperm(len(tokens)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(tokens[rows]), labels[rows]).backward()
            optimizer.step()
        if stopper.check(model):
            break
    errors = {}
    for name in ("last", "kept"):
        with torch.no_grad():
            errors[name] = (model(new_tokens).argmax(dim=1) != new_labels).float().mean().item()
        stopper.restore(model)
    print(f"test error of the last epoch {errors['last']:.3f}, of the kept epoch {errors['kept']:.3f}")
    print(stopper.stopping_reason or f"All {epochs} epochs ran; epoch {stopper.best_epoch} was kept.")
    return errors


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--own", action="store_true", help="two functions in place of what is built in")
    main(**(OWN if parser.parse_args().own else {}))
