"""Checks within epochs: made, known, kept and resumed by their steps."""

import csv
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, LambdaCallback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from problems import Classifier, Plain, Weights, blobs, fit, loader, looked_at, same, scripted, trainer
from readable import Stream
from scenarios import TwoOptimizers, normed

from bu_torch.callbacks import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping
from bu_torch.report import read_record


class Resumable:
    """A loader that goes on in the middle of an epoch: four batches, in an order of each epoch's own."""

    def __init__(self):
        self.features, self.labels = blobs()
        self.place = 0

    def __len__(self):
        return 4

    def __iter__(self):
        while True:
            order = torch.randperm(120, generator=torch.Generator().manual_seed(self.place // 4))
            rows = order.view(4, 30)[self.place % 4]
            self.place += 1
            yield self.features[rows], self.labels[rows]

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state_dict):
        self.place = state_dict["place"]


def places(callback):
    return [(entry["epoch"], entry["step"]) for entry in callback.history]


def run(folder, script, *callbacks, max_epochs=3, module=None, trainer_kwargs=None, **kwargs):
    """Train with a script, four steps an epoch; the stopping callback, the module and the weights by step."""
    settings = {"every_n_train_steps": 1, **kwargs}
    stopping, module, weights = scripted(script, **settings), module or Classifier(), Weights()
    options = {"max_epochs": max_epochs, **(trainer_kwargs or {})}
    stopping.trainer = fit(folder, stopping, weights, *callbacks, module=module, **options)
    return stopping, module, weights.of_step


class TestPlaces:
    @pytest.mark.parametrize(
        ("every", "accumulate", "expected"),
        [
            (1, 1, [(0, 1), (0, 2), (0, 3), (0, 4), (1, 5), (1, 6), (1, 7), (1, 8)]),
            (3, 1, [(0, 3), (1, 6)]),
            (4, 1, [(0, 4), (1, 8)]),
            (1, 2, [(0, 1), (0, 2), (1, 3), (1, 4)]),
            (1, 3, [(0, 1), (0, 2), (1, 3), (1, 4)]),
        ],
    )
    def test_every_nth_step_has_one_check(self, tmp_path, every, accumulate, expected):
        kwargs = {"max_epochs": 2, "trainer_kwargs": {"accumulate_grad_batches": accumulate}}
        stopping, _, _ = run(tmp_path, [0.5], every_n_train_steps=every, **kwargs)
        assert places(stopping) == expected

    def test_two_optimisers_count_as_the_trainer_counts_them(self, tmp_path):
        stopping, _, _ = run(tmp_path, [0.5], module=TwoOptimizers(normed()), every_n_train_steps=3, max_epochs=1)
        assert places(stopping) == [(0, 4), (0, 6)]

    def test_a_check_costs_a_share_of_what_the_steps_visit(self, tmp_path, monkeypatch):
        monkeypatch.setattr("bu_torch.run.budget.AUTO_SHARE", 10.0)
        monkeypatch.setattr("bu_torch.run.budget.MAX_DRAWS", 12)
        n_draws = []
        for kwargs in ({}, {"every_n_train_steps": 3}):
            monitor = BoundaryUncertaintyMonitor(n_neighbors=20, **kwargs)
            fit(tmp_path, monitor, data=loader(*blobs(n=1200), batch_size=300), max_epochs=1)
            n_draws.append(looked_at(monitor)[1])
        assert n_draws == [10, 7]

    @pytest.mark.parametrize(
        ("data", "epochs", "steps"),
        [(loader(*blobs()), 3, -1), (loader(*blobs()), -1, 7), (torch.utils.data.DataLoader(Stream(), 30), -1, 7)],
    )
    def test_too_few_steps_for_a_check_are_said(self, tmp_path, data, epochs, steps):
        stopping = scripted([0.5], every_n_train_steps=50)
        with pytest.warns(UserWarning, match="No check is made in (12|7) steps with `every_n_train_steps=50`"):
            trainer(tmp_path, stopping, max_epochs=epochs, max_steps=steps).fit(Classifier(), data)
        assert stopping.best_step is None

    def test_steps_that_are_not_counted_are_said(self, tmp_path):
        class Own(Classifier):
            automatic_optimization = False

            def training_step(self, batch, batch_idx):
                super().training_step(batch, batch_idx).backward()
                self.own.step()
                self.own.zero_grad()

            def configure_optimizers(self):
                self.own = torch.optim.SGD(self.parameters(), lr=0.1)

        with pytest.warns(UserWarning, match="`trainer.global_step` is 0, so no check is made by steps"):
            run(tmp_path, [0.5], module=Own(), max_epochs=1)


class TestKeeping:
    @pytest.mark.parametrize("writes", [True, False])
    def test_the_best_step_is_kept_and_restored(self, tmp_path, writes, log):
        script, kwargs = [0.1, 0.3, 0.2, 0.5, 0.4, 0.9, 0.8, 0.2], {"enable_checkpointing": writes}
        stopping, module, weights = run(tmp_path, script, max_epochs=2, trainer_kwargs=kwargs)
        assert (stopping.best_epoch, stopping.best_step, stopping.best_score) == (1, 6, 0.9)
        assert same(module.state_dict(), weights[6])
        assert "kept step 6 of epoch 1 (given: 0.9000)" in log.text
        if writes:
            checkpoint = torch.load(stopping.best_model_path, weights_only=True)
            assert (checkpoint["epoch"], checkpoint["global_step"]) == (1, 6)
            assert same(checkpoint["state_dict"], weights[6])
            # Four improvements, two of them in one epoch, leave one file.
            best = Path(stopping.best_model_path)
            assert best.name.startswith("boundary-epoch=1-step=6-")
            assert [*best.parent.glob("boundary-*.ckpt")] == [best]

    def test_patience_counts_checks_and_ends_an_epoch_in_the_middle(self, tmp_path):
        kwargs = {"every_n_train_steps": 2, "patience": 3, "max_epochs": 9}
        stopping, module, weights = run(tmp_path, [0.1, 0.5, 0.4], **kwargs)
        assert (stopping.best_step, stopping.stopped_epoch, stopping.trainer.global_step) == (4, 2, 10)
        assert "step 10 of epoch 2: given did not improve in the last 3 checks (6 steps)" in stopping.stopping_reason
        assert same(module.state_dict(), weights[4])
        assert max(weights) == 10


HIGHEST = {"monitor": "given", "mode": "max"}


class TestOthers:
    def test_a_user_s_callbacks_see_each_check(self, tmp_path):
        keeper = ModelCheckpoint(tmp_path / "user", every_n_train_steps=2, filename="{step}", **HIGHEST)
        seen = []
        look = LambdaCallback(on_train_batch_end=lambda t, *_: seen.append(float(t.callback_metrics.get("given", -1))))
        stopping, _, _ = run(tmp_path, [0.1, 0.7, 0.3, 0.2], keeper, look, every_n_train_steps=2, max_epochs=2)
        assert seen == pytest.approx([-1, 0.1, -1, 0.7, -1, 0.3, -1, 0.2])
        assert float(stopping.trainer.callback_metrics["given"]) == pytest.approx(0.2)
        assert Path(keeper.best_model_path).name == "step=4.ckpt"
        assert stopping.best_step == 4

    def test_no_weights_are_filed_under_a_score_of_others(self, tmp_path):
        keeper = ModelCheckpoint(tmp_path, every_n_train_steps=3, **HIGHEST)
        run(tmp_path, [0.1, 0.7, 0.3], keeper, every_n_train_steps=2)
        assert Path(keeper.best_model_path).name == "epoch=1-step=6.ckpt"  # the first that has a check of its own
        assert float(keeper.best_model_score) == pytest.approx(0.3)

    def test_who_looks_at_the_end_of_an_epoch_sees_its_last_check(self, tmp_path):
        stopper, keeper = EarlyStopping(patience=2, **HIGHEST), ModelCheckpoint(tmp_path, **HIGHEST)
        run(tmp_path, [0.5, 0.4, 0.3, 0.2], stopper, keeper, every_n_train_steps=3, max_epochs=9)
        assert stopper.stopped_epoch == 2
        assert Path(keeper.best_model_path).name == "epoch=0-step=4.ckpt"

    def test_loggers_get_every_check_at_the_step_of_its_batch(self, tmp_path):
        logger = CSVLogger(tmp_path)
        run(tmp_path, [0.1, 0.7, 0.3], every_n_train_steps=3, trainer_kwargs={"logger": logger})
        with Path(logger.experiment.metrics_file_path).open() as file:
            rows = [row for row in csv.DictReader(file) if row["given"]]
        assert [(int(row["step"]), int(row["epoch"])) for row in rows] == [(2, 0), (5, 1), (8, 2), (11, 2)]
        assert [float(row["given"]) for row in rows] == pytest.approx([0.1, 0.7, 0.3, 0.3])


class TestResume:
    def fit(self, folder, *others, ckpt_path=None):
        torch.manual_seed(0)
        callback, module = self.callback(), Plain()
        user = ModelCheckpoint(folder / "user", every_n_train_steps=1, save_top_k=-1, filename="{step}")
        fit(folder, callback, user, *others, module=module, data=Resumable(), ckpt_path=ckpt_path)
        return callback, module

    def callback(self):
        return BoundaryUncertaintyStopping(n_neighbors=20, every_n_train_steps=2, patience=50, reference=blobs())

    @pytest.fixture(scope="class")
    def in_one_piece(self, tmp_path_factory):
        return self.fit(tmp_path_factory.mktemp("whole"))

    @pytest.mark.parametrize("step", [3, 4, 6])
    @pytest.mark.filterwarnings("ignore:The dirpath has changed", "ignore:Checkpoint directory")
    def test_it_equals_the_run_in_one_piece(self, tmp_path, in_one_piece, step):
        whole, weights = in_one_piece
        assert len(whole.history) == 6
        with pytest.raises(RuntimeError, match="killed"):
            self.fit(tmp_path / "first", Killer(step))
        path = tmp_path / "first" / "user" / f"step={step}.ckpt"
        resumed, again = self.fit(tmp_path / "rest", ckpt_path=path)
        assert resumed.history == whole.history
        assert (resumed.best_epoch, resumed.best_step) == (whole.best_epoch, whole.best_step)
        assert resumed.stopping_reason == whole.stopping_reason
        assert same(again.state_dict(), weights.state_dict())
        assert read_record(resumed.record_path).places == [2, 4, 6, 8, 10, 12]


class Killer(Callback):
    """Ends training after a step, when all others have had it."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == self.step:
            raise RuntimeError("killed")
