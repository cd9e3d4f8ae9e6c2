import math

import pytest
import torch
from oracles import proposal2
from problems import blobs
from sklearn.cluster import KMeans
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from bu_torch import FeatureSpace, ParzenUncertainty, PrototypeClassifier, perturb


@pytest.mark.parametrize("space", ["inputs", "patches"])
def test_pairs_read_at_the_samples_are_those_of_the_paper(space):
    g, labels = torch.Generator().manual_seed(2), torch.arange(90) % 3
    inputs = torch.rand(90, 2, 6, 6, generator=g) + 0.1 * labels.view(-1, 1, 1, 1)
    inputs = inputs if space == "patches" else inputs.flatten(1)
    settings = {"n_neighbors": 9, "n_draws": 2, "feature_extractor": space}
    fitted = ParzenUncertainty(**settings, pairs_at="sample").fit(inputs, labels)
    moved = ParzenUncertainty(**settings).fit(inputs, labels)
    assert torch.equal(fitted.perturbed_inputs, torch.cat((moved.perturbed_inputs, inputs.unsqueeze(0))))
    noise = torch.randn(72, 3, generator=g)

    def model(x):
        return x.flatten(1) @ noise - 20 * (x.flatten(1).mean(dim=1, keepdim=True) - 0.5 - 0.1 * torch.arange(3)) ** 2

    first, second, own = (model(part).tolist() for part in fitted.perturbed_inputs)
    rest = (labels.tolist(), fitted.neighbors.tolist(), fitted.bayes_pairs.tolist())
    expected = [proposal2.parzen_uncertainty(draw, *rest, at_samples=own) for draw in (first, second)]
    assert float(fitted.score(model)) == pytest.approx(sum(expected) / 2, abs=1e-5)
    if space == "inputs":  # samples move far enough to change their pairs
        assert float(moved.score(model)) != pytest.approx(sum(expected) / 2, abs=1e-4)
    assert fitted.omission(model) == moved.omission(model)
    logits = model(fitted.perturbed_inputs.flatten(0, 1))
    assert fitted.score_logits(logits.index_fill(0, torch.tensor([269]), torch.inf)).isnan()
    with pytest.raises(ValueError, match="`logits`"):
        fitted.score_logits(logits[:180])


def test_samples_move_by_the_law_of_the_text_where_it_is_asked_for():
    features, labels = blobs(n_classes=2)
    features = features.double()
    fitted = ParzenUncertainty(seed=3, perturbation="uniform").fit(10 * features, labels)
    space, (inputs,) = FeatureSpace().fit(10 * features), fitted.perturbed_inputs
    points = space.transform(10 * features)
    expected = perturb(points, fitted.nearest_distance, torch.Generator().manual_seed(3), law="uniform")
    torch.testing.assert_close(space.transform(inputs), expected)


def test_scikit_learn_classifiers_are_scored():
    samples = [part.numpy() for part in blobs(400, n_classes=2, seed=1)]
    fitted, line = ParzenUncertainty().fit(*samples), LogisticRegression().fit(*samples)
    by_probability = float(fitted.score(line.predict_proba))
    assert 0.5 < by_probability <= 1
    assert float(fitted.score(line.decision_function)) == pytest.approx(by_probability, abs=0.01)
    forest = RandomForestClassifier(30, random_state=0).fit(*samples)  # gives probabilities of 0
    assert 0 < fitted.score(forest.predict_proba) <= 1


@pytest.mark.parametrize("feature_extractor", [None, "inputs", "patches", lambda images: images.flatten(1)])
@pytest.mark.parametrize("perturbation", [None, "random"])
def test_images_in_bytes_measure_as_the_same_numbers_and_are_held_as_bytes(feature_extractor, perturbation):
    generator, labels = torch.Generator().manual_seed(0), torch.arange(80) % 2
    images = torch.randint(0, 200, (80, 1, 8, 8), generator=generator).byte() + (40 * labels.view(-1, 1, 1, 1)).byte()
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    options = {"feature_extractor": feature_extractor, "perturbation": perturbation, "module": module}
    of_bytes = ParzenUncertainty(10, 2, **options).fit(images, labels)
    of_numbers = ParzenUncertainty(10, 2, **options).fit(images.float(), labels)
    assert of_bytes.skills_ == of_numbers.skills_
    assert torch.equal(of_bytes.neighbors, of_numbers.neighbors)
    assert torch.equal(of_bytes.perturbed_inputs, of_numbers.perturbed_inputs)
    assert of_bytes.score(module) == of_numbers.score(module)
    is_held = not callable(feature_extractor) and perturbation is None
    assert (getattr(of_bytes.perturbed, "samples", of_bytes.perturbed).dtype == torch.uint8) == is_held


# Prototypes, by which the likely pair of classes is found.


def test_prototypes_minimise_the_criterion(generator):
    """The formula term by term, on scikit-learn's K-means with the same seed."""
    features = torch.cat([torch.randn(40, 2, generator=generator) * 0.1 + c for c in (0.0, 3.0, 6.0, 9.0, 12.0)])
    labels = torch.tensor([0, 1]).repeat(100)
    fitted = PrototypeClassifier(seed=3).fit(features, labels)
    for label in (0, 1):
        members = features[labels == label].numpy()
        n, d = members.shape
        criterion = {}
        for k in range(1, 40, 2):
            sse = KMeans(k, n_init=1, random_state=3).fit(members).inertia_
            variance = sse / (n * d)
            criterion[k] = n * d * math.log(2 * math.pi * variance) + n * d + 2 * n * math.log(k) + 2 * (k * d + 1)
        assert int(fitted.n_prototypes_[label]) == min(criterion, key=criterion.get)
    assert int(fitted.n_prototypes_[0]) == 5
    # K-means in single precision would lose the clusters beside so large an offset.
    expected, moved = (PrototypeClassifier(seed=3).fit(features.double() + far, labels) for far in (0, 1e6))
    assert torch.equal(moved.n_prototypes_, expected.n_prototypes_)


def test_pairs_are_the_two_nearest_classes_and_an_absent_class_is_in_none():
    features, labels = blobs()
    fitted = PrototypeClassifier(n_prototypes=1).fit(features, 2 * labels)
    means = torch.stack([features[labels == c].mean(dim=0) for c in range(3)])
    expected = torch.cdist(features, means).argsort(dim=1)[:, :2].sort(dim=1).values
    assert torch.equal(fitted.top_pairs(features), 2 * expected)
    assert fitted.n_prototypes_.tolist() == [1, 0, 1, 0, 1]
    assert fitted.class_distances(features)[:, [1, 3]].isinf().all()
