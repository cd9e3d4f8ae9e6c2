"""Features of token ids, and texts that are perturbed by tokens of near ones."""

import pytest
import scenarios
import torch
from sklearn.feature_extraction.text import TfidfTransformer
from torch import nn

from bu_torch import FeatureSpace, ParzenUncertainty, TokenFeatures

N_TOKENS, LENGTH = 60, 12
X, Y = scenarios.tokens(200)


def network(is_useful=False):
    """Into the last layer of a useful one goes the subject."""
    embedding = nn.EmbeddingBag(N_TOKENS, 4)
    if is_useful:
        with torch.no_grad():
            embedding.weight.zero_()
            embedding.weight[N_TOKENS // 2 :, 0] = 1.0
    return nn.Sequential(embedding, nn.Linear(4, 2))


def test_without_reduction_they_are_weighted_counts():
    """Scikit-learn's transformer, of log counts and without its smoothing, which adds 1 to each weight."""
    counts = nn.functional.one_hot(X, N_TOKENS).sum(dim=1)
    n_texts = (counts > 0).sum(dim=0)
    weights = (len(X) / n_texts.double()).log()
    expected = torch.log1p(counts.double()) * weights
    expected /= expected.norm(dim=1, keepdim=True)
    found = TokenFeatures(n_components=N_TOKENS).fit(X).transform(X)
    torch.testing.assert_close(found, expected.float(), atol=1e-6, rtol=0)
    theirs = TfidfTransformer(smooth_idf=False).fit(counts.numpy()).idf_
    torch.testing.assert_close(weights, torch.as_tensor(theirs) - 1)


def test_the_axes_keep_the_angles_that_there_are():
    """Texts of two kinds without a common token lie on two axes."""
    tokens = torch.tensor([[1, 2, 3, 9], [1, 2, 3, 9], [1, 3, 2, 9], [5, 6, 7, 9], [5, 6, 7, 9], [7, 6, 5, 9]])
    found = TokenFeatures(n_components=2).fit(tokens).transform(tokens)
    cosines = found @ found.T
    expected = torch.block_diag(torch.ones(3, 3), torch.ones(3, 3))
    torch.testing.assert_close(cosines, expected, atol=1e-6, rtol=0)


def test_neither_the_order_nor_the_names_of_tokens_matter():
    names = torch.randperm(1000)[:N_TOKENS]
    fitted = TokenFeatures(10, seed=3).fit(X)
    found = fitted.transform(X)
    shuffled = X[:, torch.randperm(LENGTH)]
    torch.testing.assert_close(fitted.transform(shuffled), found)
    torch.testing.assert_close(TokenFeatures(10, seed=3).fit(shuffled).transform(X), found)
    whole, renamed = (TokenFeatures(N_TOKENS).fit(given).transform(given) for given in (X, names[X]))
    torch.testing.assert_close(renamed @ renamed.T, whole @ whole.T)
    order = torch.randperm(len(X))
    torch.testing.assert_close(fitted.transform(X[order]), found[order])


@pytest.mark.parametrize("dtype", ["int32", "int16", "uint8", "uint16", "uint32", "uint64", "array"])
def test_the_type_of_integers_does_not_matter(dtype):
    given = X.numpy() if dtype == "array" else X.to(getattr(torch, dtype))
    found = TokenFeatures(10).fit(given).transform(given)
    assert torch.equal(found, TokenFeatures(10).fit(X).transform(X))
    assert found.dtype == torch.float32


def test_tokens_that_tell_nothing_are_left_out():
    tokens = torch.arange(40).view(10, 4)
    tokens[:, 0] = 7
    assert torch.equal(TokenFeatures().fit(tokens).transform(tokens), torch.zeros(10, 1))
    fitted = TokenFeatures(10).fit(X)
    assert torch.equal(fitted.transform(X + N_TOKENS), torch.zeros(len(X), 10))


def test_token_ids_are_integers():
    for fit in (TokenFeatures().fit, TokenFeatures().fit(X).transform):
        for tokens in (torch.ones(5, 3), torch.ones(5, 3, dtype=torch.complex64)):
            with pytest.raises(TypeError, match="`tokens`"):
                fit(tokens)


# As a space, and as a perturbation.


def test_the_space_has_one_scale_for_all_axes():
    space = FeatureSpace("tokens")
    points = space.fit_transform(X)
    torch.testing.assert_close(space.transform(X), points)
    assert float(points.square().mean()) == pytest.approx(1, abs=1e-5)
    deviations = points.std(dim=0)
    assert float(deviations.max() / deviations.min()) > 1.1
    assert space.name == "tokens"


def test_tokens_or_the_network_are_chosen():
    for is_useful, expected in ((False, "tokens"), (True, "module")):
        fitted = ParzenUncertainty(20, perturbation="tokens", module=network(is_useful)).fit(X, Y)
        assert fitted.space_name_ == expected
        assert list(fitted.skills_) == ["tokens", "module"]
    alone = ParzenUncertainty(20, perturbation="tokens").fit(X, Y)
    assert (alone.space_name_, alone.skills_) == ("tokens", {})


def test_samples_that_are_no_tokens_are_refused():
    with pytest.raises(TypeError, match="`features` must be token ids"):
        ParzenUncertainty(10, perturbation="tokens").fit(torch.randn(30, 4), torch.arange(30) % 2)
