"""Where files lie by relative paths, and how a fit ends when something is unusual."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from problems import Classifier, blobs, loader, trainer

from bu_torch import BoundaryUncertaintyStopping, Rule
from bu_torch.report import read_record


class Given(Rule):
    """Scores by epoch as the test says."""

    name = "given"
    signals = ("trust_score",)

    def __init__(self, scores):
        self.scores = scores
        self.reset()

    def reset(self):
        self.n = 0

    def score(self, signals):
        self.n += 1
        return self.scores[self.n - 1]


def fit(callback, folder, scores, module=None, **kwargs):
    callback = callback or BoundaryUncertaintyStopping(n_neighbors=20, n_draws=1, rule=Given(scores), patience=50)
    made = trainer(folder, callback, max_epochs=len(scores), **kwargs)
    module = module or Classifier()
    made.fit(module, loader(*blobs()))
    return callback, module, made


@pytest.mark.parametrize("where", ["root", "logger", "dirpath"])
def test_a_relative_folder_is_as_good_as_an_absolute_one(tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    kwargs = {"logger": CSVLogger("logs")} if where == "logger" else {}
    scores = [0.1, 0.9, 0.2]
    stopping = BoundaryUncertaintyStopping(
        n_neighbors=20, n_draws=1, rule=Given(scores), dirpath="kept" if where == "dirpath" else None
    )
    stopping, module, _ = fit(stopping, "runs", scores, **kwargs)
    kept = torch.load(stopping.best_model_path, weights_only=True)
    assert kept["epoch"] == stopping.best_epoch == 1
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in kept["state_dict"].items())
    again = BoundaryUncertaintyStopping(n_neighbors=20, n_draws=1, rule=Given([0.3]))
    made = trainer("runs", again, max_epochs=3)
    made.fit(Classifier(), loader(*blobs()), ckpt_path=stopping.best_model_path)
    assert (again.best_epoch, again.best_model_path) == (1, stopping.best_model_path)


def test_a_module_that_fails_at_the_very_end_is_told_of_once(tmp_path, log):
    class Failing(Classifier):
        def on_fit_end(self):
            raise RuntimeError("trouble")

    stopping = BoundaryUncertaintyStopping(n_neighbors=20, n_draws=1)
    module = Failing()
    with pytest.raises(RuntimeError, match="trouble"):
        fit(stopping, tmp_path, [0.1, 0.2], module)
    assert log.text.count("Boundary uncertainty kept epoch") == 1
    assert stopping.stopping_reason == "Training ran until `max_epochs=2`."
    assert read_record(stopping.record_path).end.reason == stopping.stopping_reason


def test_lightning_finds_the_reason_where_it_looks(tmp_path):
    stopping = BoundaryUncertaintyStopping(n_neighbors=20, n_draws=1, rule=Given([0.5, 0.4, 0.3, 0.2]), patience=2)
    stopping, _, made = fit(stopping, tmp_path, [0.5, 0.4, 0.3, 0.2])
    assert stopping.stopped_epoch == 2
    assert made.early_stopping_callback.stopping_reason_message == stopping.stopping_reason


def test_of_two_equal_scores_the_one_whose_file_is_there_is_kept(tmp_path):
    saver = pl.callbacks.ModelCheckpoint(tmp_path / "theirs", save_last=True)
    stopping = BoundaryUncertaintyStopping(n_neighbors=20, n_draws=1, rule=Given([0.1, 0.9, 0.3]), patience=50)
    made = trainer(tmp_path / "part", stopping, saver, max_epochs=3)
    made.fit(Classifier(), loader(*blobs()))
    made.strategy.remove_checkpoint(stopping.best_model_path)
    again = BoundaryUncertaintyStopping(n_neighbors=20, n_draws=1, rule=Given([0.9]), patience=50)
    with pytest.warns(UserWarning, match="gone or damaged"):
        trainer(tmp_path / "rest", again, max_epochs=4).fit(
            Classifier(), loader(*blobs()), ckpt_path=tmp_path / "theirs" / "last.ckpt"
        )
    assert again.best_epoch == torch.load(again.best_model_path, weights_only=True)["epoch"] == 3
