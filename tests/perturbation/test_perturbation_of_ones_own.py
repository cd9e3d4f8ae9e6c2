"""Samples that are moved by the user's own operation: token ids."""

import problems
import pytest
import torch
from torch import nn

from bu_torch import BoundaryUncertainty, BoundaryUncertaintyMonitor, BoundaryUncertaintyStopper

N_TOKENS, LENGTH = 30, 8


def sentences(n=240):
    """Sentences of two subjects: tokens of the first half of the vocabulary mostly, or of the second."""
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 2
    tokens = torch.randint(0, N_TOKENS // 2, (n, LENGTH), generator=g)
    return tokens + (N_TOKENS // 2) * (torch.rand(n, LENGTH, generator=g) < 0.2 + 0.6 * labels.unsqueeze(1)), labels


def swap_one(inputs, nearest_distance, generator):
    """Put a random token in one place; `nearest_distance` says how far, which one token does not follow."""
    assert nearest_distance.shape == inputs.shape[:1]
    places = torch.randint(0, LENGTH, (len(inputs), 1), generator=generator)
    return inputs.scatter(1, places, torch.randint(0, N_TOKENS, (len(inputs), 1), generator=generator))


def share_of_tokens(inputs):
    assert inputs.dtype == torch.int64
    return torch.nn.functional.one_hot(inputs, N_TOKENS).float().mean(dim=1)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.EmbeddingBag(N_TOKENS, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def test_token_ids_stay_integers_and_change_in_one_place_at_most():
    tokens, labels = sentences()
    uncertainty = BoundaryUncertainty(
        20, n_draws=3, seed=5, feature_extractor=share_of_tokens, perturbation=swap_one
    ).fit(tokens, labels)
    moved = uncertainty.perturbed_inputs
    assert moved.dtype == torch.int64
    assert moved.shape == (3, *tokens.shape)
    assert int((moved != tokens).sum(dim=2).max()) == 1
    assert not torch.equal(moved[0], moved[1])
    again = BoundaryUncertainty(20, n_draws=3, seed=5, feature_extractor=share_of_tokens, perturbation=swap_one)
    assert torch.equal(again.fit(tokens, labels).perturbed_inputs, moved)
    assert 0 <= float(uncertainty.score(Classifier())) <= 1


def test_the_callback_and_the_loop_take_it(tmp_path):
    class Module(problems.Classifier):
        def __init__(self):
            super().__init__(lr=1.0)
            self.net = Classifier()

    tokens, labels = sentences()
    given = {"n_neighbors": 20, "feature_extractor": share_of_tokens, "perturbation": swap_one}
    monitor = BoundaryUncertaintyMonitor(**given)
    problems.trainer(tmp_path, monitor, max_epochs=4).fit(Module(), problems.loader(tokens, labels))
    assert len(monitor.history) == 4
    assert monitor.history[-1]["label_agreement"] > 0.6
    stopper = BoundaryUncertaintyStopper(tokens, labels, **given)
    assert not stopper.check(Classifier())


@pytest.mark.parametrize(
    ("perturbation", "message"),
    [
        (lambda x, d, g: x[:, :2], r"`perturbation` must give .* \(240, 8\), got \(240, 2\)"),
        (lambda x, d, g: None, "`perturbation` must give .* got NoneType"),
        (lambda x, d, g: x * torch.nan, "`perturbation` must give finite inputs"),
    ],
)
def test_what_it_must_give(perturbation, message):
    with pytest.raises(ValueError, match=message):
        BoundaryUncertainty(20, perturbation=perturbation).fit(*sentences())
