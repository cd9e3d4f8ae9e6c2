"""Ray Tune's own tuner, and its trials by hand."""

import builtins
import math
import pickle

import pytest
import torch
from torch import nn

ray = pytest.importorskip("ray")
tune = pytest.importorskip("ray.tune")

from problems import blobs  # noqa: E402

from bu_torch import BoundaryUncertaintyStopper  # noqa: E402
from bu_torch.integrations.ray import BoundaryUncertaintyTrialStopper  # noqa: E402


def checks(**options):
    """Checks of a training of 30 epochs, and what their stopper said."""
    torch.manual_seed(0)
    inputs, labels = blobs()
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    stopper = BoundaryUncertaintyStopper(inputs, labels, n_draws=1, **options)
    said = []
    for _ in range(120):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        said.append(stopper.check(model))
    return stopper, said


@pytest.mark.parametrize("options", [{"patience": 2}, {"patience": 3, "rule": "trust_score", "min_delta": 0.01}])
def test_each_trial_is_decided_as_the_stopper_in_it_decides(options):
    stopper, said = checks(**options)
    assert any(said)  # a training that is never stopped would not show that both agree
    tuned = BoundaryUncertaintyTrialStopper(**options)
    for check, should_stop in zip(stopper.history, said, strict=True):
        assert tuned("first", {**check, "training_iteration": 7, "done": False}) is should_stop
    assert tuned.best_result("first")["epoch"] == stopper.best_epoch
    assert not tuned("second", stopper.history[0])
    assert tuned.best_result("second")["epoch"] == 0
    assert tuned.best_result("third") is None
    assert not tuned.stop_all()


def test_a_trial_that_goes_on_from_a_checkpoint_reports_checks_again():
    stopper, said = checks(patience=2)
    tuned = BoundaryUncertaintyTrialStopper(patience=2)
    n_before = said.index(True)
    for check in stopper.history[:n_before]:
        tuned("trial", check)
    tuned = pickle.loads(pickle.dumps(tuned))  # noqa: S301
    again = [tuned("trial", check) for check in stopper.history[n_before - 2 : n_before + 1]]
    assert again == said[n_before - 2 : n_before + 1]


def test_a_result_without_a_score_and_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="a check with `epoch`, got loss, done"):
        BoundaryUncertaintyTrialStopper()("trial", {"loss": 1.0, "done": False})
    for odd in (None, "0.5"):
        with pytest.raises(ValueError, match=f"must hold a number as `accuracy_uncertainty_trust`, got {odd!r}"):
            BoundaryUncertaintyTrialStopper()("trial", {"epoch": 0, "accuracy_uncertainty_trust": odd})
    with pytest.raises(ValueError, match="`patience` must be"):
        BoundaryUncertaintyTrialStopper(patience=-1)


def test_a_tuner_stops_each_trial_by_its_own_scores(tmp_path, monkeypatch):
    def train(config):  # never stops by itself; its scores rise and fall
        for epoch in range(20):
            tune.report({"epoch": epoch, "accuracy_uncertainty_trust": math.sin(epoch / config["scale"])})

    monkeypatch.setattr(builtins, "print", print)  # which Ray replaces, to be put back
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
    try:
        stopper, quick = BoundaryUncertaintyTrialStopper(patience=2), tune.TuneConfig(reuse_actors=True)
        run = tune.RunConfig(stop=stopper, storage_path=str(tmp_path), verbose=0)
        scales = {"scale": tune.grid_search([2, 4])}
        results = tune.Tuner(train, param_space=scales, run_config=run, tune_config=quick).fit()
    finally:
        ray.shutdown()
    assert not results.errors
    # The sine is largest at a quarter of its period: 3.1 and 6.3 epochs.
    assert {one.config["scale"]: one.metrics["epoch"] for one in results} == {2: 3 + 2, 4: 6 + 2}
