"""Each recipe of the documentation runs when it is copied alone, and does what its page says."""

import builtins
import re
import shutil
import sys
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from problems import Classifier, blobs, loader, same

import bu_torch

FOLDER = Path(__file__).parents[2] / "examples" / "recipes"


@pytest.fixture
def recipe(load, monkeypatch, tmp_path):
    """Import a recipe, if the packages it needs are there, from a folder where nothing but its own file lies."""
    monkeypatch.chdir(tmp_path)

    def recipe(name, *packages):
        for package in packages:
            pytest.importorskip(package)
        return load(Path(shutil.copy(FOLDER / f"{name}.py", tmp_path)))

    return recipe


def highest(stopper):
    """The epoch of the highest score."""
    return max(stopper.history, key=lambda check: check[stopper.score_name])["epoch"]


def test_every_recipe_is_tested_and_shown_on_a_page():
    names = {path.stem for path in FOLDER.glob("*.py")}
    tests = Path(__file__).read_text()
    assert {name for name in names - set(RECIPES) if f'recipe("{name}"' not in tests} == set()
    pages = "".join(page.read_text() for page in (FOLDER.parents[1] / "docs").rglob("*.md"))
    assert {name for name in names if f"\n[examples/recipes/{name}.py](../" not in pages} == set()


def own_callbacks_use_the_signal(found):
    monitor, stopping, checkpoint = found
    values = [check["boundary_uncertainty"] for check in monitor.history]
    return stopping.stopped_epoch == len(values) - 1 == values.index(max(values)) + 10 and sorted(
        map(float, checkpoint.best_k_models.values())
    ) == pytest.approx(sorted(values)[-3:])


def the_rate_follows_the_signal(found):
    best, rate, waited = float("-inf"), 0.01, 0  # as torch's scheduler decides, with the value of the same epoch
    for value in (check["boundary_uncertainty"] for check in found[0].history):
        best, waited = (value, 0) if value > best * (1 + 1e-4) else (best, waited + 1)
        rate, waited = (rate / 2, 0) if waited > 3 else (rate, waited)
    return found[1].lr_schedulers().get_last_lr() == [pytest.approx(rate)] and rate < 0.01


# Of each recipe: packages that it needs, arguments of its `main`, and what must hold of what it returns.
RECIPES = {
    "plain_loop": ((), {}, lambda stopper: stopper.stopped_epoch == highest(stopper) + 20),
    "sklearn_search": ((), {}, lambda search: 0.5 <= search.best_params_["gamma"] <= 8
                       and search.best_estimator_.shape_fit_ == (400, 2)),  # all of them
    "own_callbacks": ((), {}, own_callbacks_use_the_signal),
    "reduce_lr": ((), {"epochs": 25}, the_rate_follows_the_signal),
    "weight_averaging": ((), {"epochs": 10}, lambda found: same(found[2], found[1].state_dict())),
    "model_soup": ((), {}, lambda found: found[0] > 1 and found[2] < found[1] + 0.01),
    "wandb_offline": (("wandb",), {"epochs": 2},
                      lambda shown: {"boundary_uncertainty", "trust_score", "vote_agreement"} <= set(shown)),
    "mlflow_local": (("mlflow",), {"epochs": 2}, lambda found: all(0 <= value <= 1 for value in found)),
    "frozen_backbone": (("torchvision",), {"epochs": 1}, lambda one: one.history[-1]["vote_agreement"] > 0.45
                        and type(one.feature_extractor.fc) is torch.nn.Identity),
    "fine_tuning": ((), {"runs": 1}, lambda errors: errors["kept"] <= errors["last"] + 0.02),
    "text_tokens": ((), {}, lambda errors: errors["kept"] < 0.25 and errors["kept"] <= errors["last"] + 0.02),
    "text_embeddings": (("transformers",), {"epochs": 60}, lambda found: found[0]["kept"] < 0.1),
    "resume": ((), {"epochs": 10}, lambda found: found[1].history[:5] == found[0].history
               and [check["epoch"] for check in found[1].history] == list(range(10))),
    "costs": ((), {"epochs": 3}, lambda costs: costs["costs"] < min(costs["nobody"], costs["everybody"])),
}  # fmt: skip


@pytest.mark.parametrize("name", list(RECIPES))
def test_a_recipe_does_what_its_page_says(recipe, monkeypatch, name):
    for variable in ("WANDB_SILENT", "WANDB_DISABLE_GIT", "WANDB_DISABLE_CODE"):
        monkeypatch.setenv(variable, "true")
    packages, arguments, holds = RECIPES[name]
    module = recipe(name, *packages)
    assert holds(module.main(**arguments))
    if name == "text_tokens":
        module.main(epochs=25, **module.OWN)


def test_skorch_callback(recipe):
    module = recipe("skorch_callback", "skorch")
    net = module.main(epochs=100)
    stopper = dict(net.callbacks_)["boundary"].stopper_
    assert len(net.history) == stopper.stopped_epoch + 1 < 100
    assert net.history[:, "boundary_uncertainty"] == [check["boundary_uncertainty"] for check in stopper.history]
    assert module.test_error(net.module_) < 0.1


def test_huggingface_trainer(recipe, capsys):
    stopper = recipe("huggingface_trainer", "transformers", "accelerate").main(epochs=100)
    assert stopper.stopped_epoch == highest(stopper) + 20 == len(stopper.history) - 1
    assert float(capsys.readouterr().out.split("test error of the kept epoch: ")[1].split()[0]) < 0.1


def test_lightning_cli(recipe, tmp_path):
    pytest.importorskip("jsonargparse")
    from lightning.pytorch import cli

    if not cli._JSONARGPARSE_SIGNATURES_AVAILABLE:
        pytest.skip("needs jsonargparse[signatures]")
    config = str(FOLDER / "lightning_cli.yaml")
    options = [f"--trainer.default_root_dir={tmp_path}", "--trainer.max_epochs=3"]
    given = {"n_neighbors": 20, "n_draws": "null", "dirpath": tmp_path / "mine", "filename": "{epoch}"}
    given |= {"save_weights_only": "true"}
    options += [f"--trainer.callbacks.{name}={value}" for name, value in given.items()]
    run = recipe("lightning_cli").main(["fit", f"--config={config}", *options])
    stopping = run.trainer.callbacks[0]
    assert type(stopping) is bu_torch.BoundaryUncertaintyStopping
    assert (stopping.patience, stopping.rule, len(stopping.history)) == (15, "expected_accuracy", 3)
    assert (stopping.n_neighbors, stopping.n_draws, stopping.save_weights_only) == (20, None, True)
    assert stopping.best_model_path.startswith(str(tmp_path / "mine" / f"epoch={stopping.best_epoch}-"))
    assert "class_path: bu_torch.callbacks.BoundaryUncertaintyStopping" in (tmp_path / "config.yaml").read_text()


def block(page, **names):
    """The names after the code on a page of recipes, with these before it; its trainings are short."""
    code = re.search(r"```python\n(.*?)```", (FOLDER.parents[1] / "docs" / "recipes" / page).read_text(), re.DOTALL)[1]
    names |= {"BoundaryUncertaintyStopping": bu_torch.BoundaryUncertaintyStopping, "LambdaCallback": LambdaCallback}
    names |= {"Classifier": Classifier, "L": L, "loader": loader(*blobs()), "__name__": "__main__"}
    quick = "max_epochs=20, logger=False, enable_progress_bar=False"
    exec(code.replace("max_epochs=100", quick), names)  # noqa: S102  (of our own page)
    return names


@pytest.mark.filterwarnings("ignore:::bu_torch")  # of rates that are too small
def test_optuna(tmp_path, monkeypatch):
    optuna = pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(n_startup_trials=2))
    monkeypatch.setattr(optuna, "create_study", lambda direction: study)
    block("optuna.md", optuna=optuna)
    assert {trial.state.name for trial in study.trials} == {"COMPLETE", "PRUNED"}
    assert study.best_params["lr"] > 1e-3


def test_ray(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # for what it writes
    ray = pytest.importorskip("ray")
    tune = pytest.importorskip("ray.tune")
    monkeypatch.setattr(builtins, "print", print)  # which Ray replaces, to be put back
    for module in (sys.modules[__name__], sys.modules["problems"]):
        ray.cloudpickle.register_pickle_by_value(module)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        best = block("ray.md", tune=tune)["best"]
    finally:
        ray.shutdown()
    assert best.config["lr"] == 0.01
    assert 0 < best.metrics["expected_accuracy"] < 1


def test_loggers(recipe, tmp_path):
    rows, folder = recipe("loggers", "tensorboard").main(tmp_path, epochs=3)
    assert [int(row["epoch"]) for row in rows] == [0, 1, 2]
    assert all(0 <= float(row["boundary_uncertainty"]) <= 1 for row in rows)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    assert len(events.Scalars("boundary_uncertainty")) == 3
