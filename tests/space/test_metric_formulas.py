import pytest
import torch

from bu_torch.space.metric import average_gradient_outer_product, kernel_ridge, laplace_kernel, metric_root


def given(generator, n=30, n_landmarks=7, d=4, n_outputs=3):
    shapes = (n, d), (n_landmarks, d), (n_landmarks, n_outputs)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def by_autograd(points, landmarks, coefficients, width, weights):
    """The mean over points of the outer products of the gradients, one point and one output at a time."""
    total = torch.zeros(points.shape[1], points.shape[1], dtype=points.dtype)
    for point, weight in zip(points, weights, strict=True):
        for column in coefficients.T:

            def function(x, column=column):
                return sum(a * torch.exp(-(x - z).norm() / width) for a, z in zip(column, landmarks, strict=True))

            gradient = torch.autograd.functional.jacobian(function, point)
            total += weight * torch.outer(gradient, gradient)
    return total / len(points)


def outer_product(points, landmarks, coefficients, width, weights=None):
    distances = torch.cdist(points, landmarks)
    return average_gradient_outer_product(points, landmarks, distances, coefficients, width, weights)


def test_the_average_outer_product_is_that_of_gradients_by_autograd(generator, device, monkeypatch):
    monkeypatch.setattr("bu_torch.space.metric._BLOCK_ELEMENTS", 100)  # several blocks
    points, landmarks, coefficients = given(generator)
    weights = torch.rand(30, generator=generator, dtype=torch.float64) + 0.1
    weights /= weights.mean()
    moved = [tensor.to(device) for tensor in (points, landmarks, coefficients)]
    found = outer_product(*moved, 1.7, weights.to(device))
    torch.testing.assert_close(found.cpu(), by_autograd(points, landmarks, coefficients, 1.7, weights))
    # A landmark adds nothing at its own place.
    alone = outer_product(landmarks[:1], landmarks, coefficients, 1.0)
    torch.testing.assert_close(alone, outer_product(landmarks[:1], landmarks[1:], coefficients[1:], 1.0))


def test_ridge_solves_with_its_penalty_or_that_of_the_least_left_out_error(generator, monkeypatch):
    monkeypatch.setattr("bu_torch.space.metric._JITTER", 1e-12)
    monkeypatch.setattr("bu_torch.space.metric._PENALTIES", [0.01, 1.0, 10.0])
    points, _, _ = given(generator, n=40)
    targets = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    weights = torch.rand(40, generator=generator, dtype=torch.float64) + 0.1
    weights /= weights.mean()
    kernel = laplace_kernel(torch.cdist(points, points), 2.0)
    errors = {}
    for penalty in (0.01, 1.0, 10.0):
        system = kernel + penalty * torch.diag(1 / weights)
        inverse = torch.linalg.inv(system)
        left_out = (inverse @ targets) / inverse.diagonal().unsqueeze(1)  # residuals of as many fits to the others
        errors[penalty] = (weights.unsqueeze(1) * left_out.square()).sum(), inverse @ targets
    expected = min(errors.values(), key=lambda pair: pair[0])[1]
    penalty = kernel_ridge(kernel, kernel, targets, weights=weights)[1]
    assert errors[penalty][1] is expected
    for own_penalty, (_, coefficients) in errors.items():
        found, kept = kernel_ridge(kernel, kernel, targets, own_penalty, weights)
        assert kept == own_penalty
        torch.testing.assert_close(kernel @ found, kernel @ coefficients, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_root_has_the_trace_of_the_identity(generator, factor):
    matrix = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    matrix = matrix @ matrix.T
    root = metric_root(factor * matrix)
    torch.testing.assert_close(root @ root, 5 * matrix / matrix.trace())
    torch.testing.assert_close(root, root.T)
    assert torch.equal(metric_root(torch.zeros(3, 3)), torch.eye(3))
