"""What holds of every training: no trace of the callback, none of a kill, the best check's weights, in any loop."""

from operator import eq

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from problems import assert_same_checks, close, same, weights_of
from scenarios import CHANGING, N_EPOCHS, SCENARIOS, Case

from bu_torch import BoundaryUncertaintyMonitor

pytestmark = pytest.mark.filterwarnings("ignore:StochasticWeightAveraging puts its average")


def cases(condition=lambda scenario: True):
    """All scenarios of a kind, whose trainings the tests share."""
    names = [name for name, scenario in SCENARIOS.items() if condition(scenario)]
    return pytest.mark.parametrize("case", names, indirect=True, scope="module")


@pytest.fixture(scope="module")
def case(request, tmp_path_factory):
    return Case(SCENARIOS[request.param], tmp_path_factory.mktemp("case"))


def assert_same_epochs(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            alike = {"weights": same, "logged": lambda one, other: one.items() >= other.items()}.get(name, eq)
            assert alike(value, other[name]), name


@cases()
def test_weights_modes_random_states_and_hooks_are_those_of_a_training_without(case):
    _, seen, _, made = case.whole
    assert made.current_epoch == len(seen) >= 1
    assert_same_epochs(seen, case.plain[0][: len(seen)])


SEEN = ["dropout", "noise in hook and step", "tokens", "LoRA", *CHANGING]


@pytest.mark.parametrize("case", SEEN, indirect=True, scope="module")
def test_the_monitor_leaves_no_trace_either(case):
    # The features of lazy layers nobody can read before training.
    space = None if case.scenario.module in (CHANGING["lazy layers"], SCENARIOS["tokens"].module) else "module"
    settings = {"n_neighbors": 20, "n_draws": 1, "feature_extractor": space, **case.scenario.settings}
    monitor = BoundaryUncertaintyMonitor(**settings)
    seen, _, _ = case.scenario.train(case.folder / "monitored", monitor)
    assert len(monitor.history) == len(seen) == N_EPOCHS
    assert_same_epochs(seen, case.plain[0])


@cases()
def test_the_best_check_is_kept_and_put_back(case):
    stopping, _, module, _ = case.whole
    (best,) = [entry for entry in stopping.history if entry["step"] == stopping.best_step]
    assert (best["epoch"], best[stopping.score_name]) == (stopping.best_epoch, stopping.best_score)
    counted = [entry for entry in stopping.history if entry["epoch"] >= stopping.start_from_epoch]
    assert stopping.best_score == max(entry[stopping.score_name] for entry in counted)
    writes = not case.scenario.options.get("barebones") and case.scenario.options.get("enable_checkpointing", True)
    assert bool(stopping.best_model_path) == writes
    if stopping.best_model_path:
        kept = torch.load(stopping.best_model_path, weights_only=True)
        assert (kept["epoch"], kept["global_step"]) == (stopping.best_epoch, stopping.best_step)
        assert same(kept["state_dict"], module.state_dict())


@cases(lambda scenario: scenario.others is not list)
def test_the_order_of_the_list_does_not_matter(case):
    stopping, _, module, _ = case.whole
    again = case.scenario.stopping()
    _, other, _ = case.scenario.train(case.folder / "order", again, others_first=True)
    assert (again.history, again.best_step) == (stopping.history, stopping.best_step)
    assert same(other.state_dict(), module.state_dict())


@cases(lambda scenario: scenario.is_measured_alone)
def test_the_kept_weights_are_those_that_were_measured(case):
    stopping, _, module, _ = case.whole
    again = case.scenario.stopper(averaging=None)
    again.check(module)
    (best,) = [entry for entry in stopping.history if entry["step"] == stopping.best_step]
    for name in ("boundary_uncertainty", "trust_score", "expected_accuracy", "accuracy_uncertainty_trust"):
        assert again.history[0][name] == pytest.approx(best[name], abs=1e-5), name


def test_of_an_optimiser_with_modes_the_weights_to_evaluate_are_kept(tmp_path):
    def look(trainer, pl_module, *_):
        trainer.optimizers[0].eval()
        seen[trainer.global_step] = weights_of(pl_module)
        trainer.optimizers[0].train()

    seen, scenario = {}, SCENARIOS["going on within an epoch, ScheduleFree, averaging=None"]
    stopping = scenario.stopping()
    _, module, _ = scenario.train(tmp_path, stopping, LambdaCallback(on_train_batch_end=look))
    assert close(weights_of(module), seen[stopping.best_step])


@cases(lambda scenario: scenario.resumes)
@pytest.mark.parametrize("place", ["last", "kept"])
def test_a_killed_run_goes_on_as_if_it_had_not_been(case, place):
    first, last = case.killed
    assert_goes_on(case, last if place == "last" else first.best_model_path)


@pytest.mark.parametrize("case", ["a table"], indirect=True, scope="module")
@pytest.mark.parametrize("epoch", [1, 2, 4])
def test_a_run_goes_on_in_whichever_epoch_it_was_killed(case, epoch):
    assert_goes_on(case, case.killed_in(epoch)[1])


def assert_goes_on(case, path):
    """A run that resumes from a checkpoint ends as the one in a piece."""
    whole, seen, module, _ = case.whole
    resumed, seen_again, again, _ = case.resumed(path)
    # Lightning loads all precisions into a module of 32 bits, which it then converts.
    tolerance = 1e-5 if case.scenario.options.get("precision") == "64-true" else 0
    assert_same_checks(resumed.history, whole.history, rel=0, abs=tolerance)
    for name in ("best_epoch", "stopped_epoch", "stopping_reason"):
        assert getattr(resumed, name) == getattr(whole, name), name
    for one, other in zip(seen_again, seen[-len(seen_again) :], strict=True):
        assert (one["modes"], one["optimisers"]) == (other["modes"], other["optimisers"])
        torch.testing.assert_close(one["weights"], other["weights"], rtol=0, atol=tolerance)
    torch.testing.assert_close(again.state_dict(), module.state_dict(), rtol=0, atol=tolerance)


@cases(lambda scenario: scenario.loops)
def test_a_loop_of_ones_own_is_the_same_training(case):
    stopping, _, module, _ = case.whole
    stopper, again = case.scenario.loop()
    assert len(stopper.history) == len(stopping.history)
    for one, other in zip(stopper.history, stopping.history, strict=True):
        assert {name: one[name] for name in one} == pytest.approx({name: other[name] for name in one}, abs=1e-6)
    for name in ("best_epoch", "stopped_epoch", *([] if stopper.stopped_epoch is None else ["stopping_reason"])):
        assert getattr(stopper, name) == getattr(stopping, name), name
    assert same(again.state_dict(), module.state_dict())
