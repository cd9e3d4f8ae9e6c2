"""What users of Lightning's `EarlyStopping` and `ModelCheckpoint` rely on holds here too, and where it does not, the
page `docs/lightning.md` says so.
"""

import copy
import inspect
import math
import pickle
import re
import signal
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, LambdaCallback, ModelCheckpoint
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning.pytorch.loggers import CSVLogger
from problems import Classifier, Weights, blobs, loader, same, scripted, state_of, trainer, weights_of

from bu_torch.callbacks import BoundaryUncertaintyStopping
from bu_torch.report import read_record

NAN = math.nan
PAGE = Path(__file__).parents[2] / "docs" / "lightning.md"
N_STEPS = 2  # an epoch


class Validated(Classifier):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", torch.nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def predict_step(self, batch, batch_idx):
        return self(batch[0])


def data(seed=0):
    return loader(*blobs(n=60, seed=seed), batch_size=60 // N_STEPS)


def prepare(folder, script, *callbacks, module=None, max_epochs=10, trainer_kwargs=None, **kwargs):
    """All that a training needs, which has not begun."""
    stopping, weights = scripted(script, **kwargs), Weights()
    made = trainer(folder, stopping, weights, *callbacks, max_epochs=max_epochs, **(trainer_kwargs or {}))
    return SimpleNamespace(stopping=stopping, weights=weights, trainer=made, module=module or Classifier())


def run(folder, script, *callbacks, ckpt_path=None, validation=None, **kwargs):
    made = prepare(folder, script, *callbacks, **kwargs)
    made.trainer.fit(made.module, data(), validation, ckpt_path=ckpt_path)
    return made


def epochs(stopping):
    return [entry["epoch"] for entry in stopping.history]


def files(folder):
    return sorted(path.name for path in Path(folder).rglob("*.ckpt"))


class Logging(Classifier):
    """Logs the script itself, for Lightning's own callbacks."""

    def __init__(self, script):
        super().__init__()
        self.script = script

    def on_train_epoch_end(self):
        self.log("score", self.script[min(self.current_epoch, len(self.script) - 1)])


def run_lightning_s(folder, script, *callbacks, module=None, max_epochs=10, trainer_kwargs=None, **kwargs):
    """The same training with Lightning's pair of callbacks."""
    stopper, keeper = EarlyStopping("score", mode="max", **kwargs), ModelCheckpoint(monitor="score", mode="max")
    made = trainer(folder, stopper, keeper, *callbacks, max_epochs=max_epochs, **(trainer_kwargs or {}))
    made.fit(module or Logging(script), data())
    return made, stopper, keeper


WORDS = {
    EarlyStoppingReason.PATIENCE_EXHAUSTED: "did not improve",
    EarlyStoppingReason.NON_FINITE_METRIC: "not finite",
    EarlyStoppingReason.NOT_STOPPED: "Training ran until `max_epochs=10`.",
}


@pytest.mark.parametrize(
    ("script", "kwargs", "reason"),
    [
        ([0.2, 0.4, 0.4, 0.4, 0.4], {"patience": 3}, EarlyStoppingReason.PATIENCE_EXHAUSTED),
        ([0.5, 0.6, NAN, 0.9], {"patience": 9}, EarlyStoppingReason.NON_FINITE_METRIC),
        ([0.1, 0.3, 0.2, 0.4, 0.3], {"patience": 9}, EarlyStoppingReason.NOT_STOPPED),
        ([0.1, 0.5, 0.9, 0.9, 1.0], {"patience": 0}, EarlyStoppingReason.PATIENCE_EXHAUSTED),
    ],
)
def test_a_training_stops_and_keeps_where_it_does_under_lightning_s_pair(tmp_path, script, kwargs, reason):
    theirs, stopper, keeper = run_lightning_s(tmp_path / "theirs", script, **kwargs)
    made = run(tmp_path / "ours", script, **kwargs)
    assert (made.trainer.current_epoch, made.trainer.global_step) == (theirs.current_epoch, theirs.global_step)
    assert made.stopping.best_epoch == torch.load(keeper.best_model_path, weights_only=True)["epoch"]
    assert made.stopping.best_score == pytest.approx(float(keeper.best_model_score))
    assert same(made.module.state_dict(), made.weights.of_epoch[made.stopping.best_epoch])
    assert stopper.stopping_reason == reason
    scores = [entry["given"] for entry in made.stopping.history]
    assert read_record(made.stopping.record_path).values("given") == pytest.approx(scores, nan_ok=True)
    stopped = reason != EarlyStoppingReason.NOT_STOPPED
    assert made.stopping.stopped_epoch == (stopper.stopped_epoch if stopped else None)
    assert WORDS[reason] in made.stopping.stopping_reason
    assert made.trainer.state.finished
    assert made.trainer.should_stop == theirs.should_stop == stopped


class Listening(CSVLogger):
    """Remembers what a logger that uploads checkpoints would see."""

    def __init__(self, folder):
        super().__init__(folder)
        self.saved, self.settings = [], []

    def after_save_checkpoint(self, checkpoint_callback):
        one, path = checkpoint_callback, checkpoint_callback.best_model_path
        if one.monitor is not None:  # as that of the one that Lightning adds is
            epoch, of_files = torch.load(path, weights_only=True)["epoch"], {path: one.current_score}
            self.saved.append((epoch, float(one.current_score), float(one.best_model_score)))
            self.settings.append((one.best_k_models == of_files, one.last_model_path, one.save_top_k, one.mode))


class Stepped(Classifier):
    """Doubles its learning rate after each epoch."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=2.0)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A training in which epochs 0, 1 and 3 are the best so far."""
    folder = tmp_path_factory.mktemp("saved")
    logger, saves = Listening(folder), Counter()
    options = {"module": Stepped(), "max_epochs": 5, "trainer_kwargs": {"logger": logger}}
    made = prepare(folder, [0.5, 0.9, 0.2, 0.95, 0.1], **options)
    save = made.trainer.save_checkpoint

    def counted(path, *args, **kwargs):
        saves[Path(path).name] += 1
        save(path, *args, **kwargs)

    made.trainer.save_checkpoint = counted
    made.trainer.fit(made.module, data())
    made.logger, made.saves = logger, saves
    made.checkpoint = torch.load(made.stopping.best_model_path, weights_only=True)
    return made


class TestWhatIsSaved:
    def test_each_best_epoch_is_saved_once_and_no_other(self, made):
        own = {name[: -len("-7f3a2b.ckpt")]: n for name, n in made.saves.items() if name.startswith("boundary-")}
        assert own == {f"boundary-epoch={epoch}-step={N_STEPS * (epoch + 1)}": 1 for epoch in (0, 1, 3)}

    def test_the_last_best_is_left_beside_lightning_s_own_file(self, made):
        left = [Path(made.stopping.best_model_path).name, f"epoch=4-step={5 * N_STEPS}.ckpt"]
        assert files(made.trainer.default_root_dir) == left

    def test_it_is_saved_when_the_scheduler_has_stepped(self, made):
        (scheduler,) = made.checkpoint["lr_schedulers"]
        assert scheduler["_last_lr"] == [pytest.approx(0.05 * 2**4)]
        assert made.checkpoint["optimizer_states"][0]["param_groups"][0]["lr"] == scheduler["_last_lr"][0]

    def test_it_names_itself_and_its_score(self, made):
        keeper = state_of(made.checkpoint, "FileKeeper")
        assert keeper["best_model_path"] == made.stopping.best_model_path
        assert float(keeper["current_score"]) == float(keeper["best_model_score"]) == 0.95

    def test_loggers_are_told_of_each_when_it_is_there(self, made):
        assert made.logger.saved == [(0, 0.5, 0.5), (1, 0.9, 0.9), (3, 0.95, 0.95)]
        assert made.logger.settings == [(True, "", 1, "max")] * 3


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A run of three epochs, and its last checkpoint."""
    folder = tmp_path_factory.mktemp("first")
    last = ModelCheckpoint(folder / "user", save_last=True)
    made = run(folder, TestResume.SCRIPT, last, max_epochs=3)
    made.last = last.last_model_path
    return made


class TestResume:
    SCRIPT = (0.1, 0.9, 0.3, 0.4)

    @pytest.mark.parametrize("again", ["last", "best"])
    def test_a_run_that_is_over_trains_and_saves_nothing_more(self, first, again):
        def times():
            return {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*")}

        folder = first.trainer.default_root_dir
        path, n_epochs = (first.last, 3) if again == "last" else (first.stopping.best_model_path, 2)
        before = times()
        made = run(folder, self.SCRIPT, ckpt_path=path, max_epochs=n_epochs)
        assert (made.trainer.current_epoch, made.trainer.global_step) == (n_epochs, N_STEPS * n_epochs)
        assert times() == before
        assert (made.stopping.best_epoch, epochs(made.stopping)) == (1, list(range(n_epochs)))
        assert made.stopping.best_model_path == first.stopping.best_model_path
        assert same(made.module.state_dict(), first.weights.of_epoch[1])

    def test_last_finds_the_file_of_the_user_s_own_callback(self, first, tmp_path):
        last = ModelCheckpoint(Path(first.last).parent, save_top_k=0)
        made = run(tmp_path, self.SCRIPT, last, ckpt_path="last", max_epochs=4)
        assert (made.stopping.best_epoch, epochs(made.stopping)) == (1, [0, 1, 2, 3])

    def test_a_checkpoint_of_a_trainer_without_the_callback(self, tmp_path):
        plain = trainer(tmp_path / "plain", max_epochs=2)
        plain.fit(Classifier(), data())
        path = plain.checkpoint_callback.best_model_path
        made = run(tmp_path, [0.3, 0.5, 0.2], ckpt_path=path, max_epochs=5)
        assert (made.stopping.best_epoch, epochs(made.stopping)) == (3, [2, 3, 4])
        assert Path(path).exists()

    def test_a_trainer_without_the_callback_goes_on_from_ours(self, first, tmp_path):
        seen = {}
        look = LambdaCallback(on_train_start=lambda t, m: seen.update(weights_of(m)))
        plain = trainer(tmp_path, look, max_epochs=4)
        plain.fit(Classifier(), data(), ckpt_path=first.stopping.best_model_path)
        assert same(seen, first.weights.of_epoch[1])
        assert (plain.current_epoch, plain.global_step) == (4, 4 * N_STEPS)


class TestBesideTheUsersOwn:
    @pytest.mark.parametrize("ours_first", [True, False])
    @pytest.mark.parametrize(("patience", "stopped"), [(2, "ours"), (9, "theirs")])
    def test_whichever_stops_first_ends_the_training(self, tmp_path, ours_first, patience, stopped):
        ours = scripted([0.9, 0.1], patience=patience)
        theirs = EarlyStopping("score", mode="max", patience=4)
        made = trainer(tmp_path, *([ours, theirs] if ours_first else [theirs, ours]), max_epochs=10)
        made.fit(Logging([0.9, 0.1]), data())
        assert made.current_epoch == (3 if stopped == "ours" else 5)
        assert ours.stopped_epoch == (2 if stopped == "ours" else None)
        assert theirs.stopped_epoch == (0 if stopped == "ours" else 4)
        assert ("`EarlyStopping` stopped training in epoch 4: " in ours.stopping_reason) == (stopped == "theirs")
        assert ours.best_epoch == 0

    @pytest.mark.parametrize(
        ("error", "raised", "is_restored"), [(KeyboardInterrupt(), SystemExit, True), (OSError("no"), OSError, False)]
    )
    def test_a_file_of_the_exception_holds_the_weights_that_training_had(self, tmp_path, error, raised, is_restored):
        seen = {}

        def fail(trainer, module, batch, batch_idx):
            if trainer.current_epoch == 2 and batch_idx == 1:
                seen.update(weights_of(module))
                raise error

        saving = ModelCheckpoint(tmp_path / "user", filename="exception", save_on_exception=True, every_n_epochs=99)
        made = prepare(tmp_path, [0.5, 0.9, 0.1], saving, LambdaCallback(on_train_batch_start=fail))
        handler = signal.getsignal(signal.SIGINT)
        try:
            with pytest.raises(raised):
                made.trainer.fit(made.module, data())
        finally:
            signal.signal(signal.SIGINT, handler)
        assert same(torch.load(tmp_path / "user" / "exception.ckpt", weights_only=True)["state_dict"], seen)
        assert made.stopping.best_epoch == 1
        assert same(made.module.state_dict(), made.weights.of_epoch[1] if is_restored else seen)


# One for each phase of an epoch and of what follows it.
HOOKS = ["on_train_batch_end", "on_validation_end", "on_train_epoch_end", "on_train_end", "on_fit_end"]
MODULE_HOOKS = ["on_train_epoch_start", "training_step", "on_after_backward", "optimizer_step", "validation_step"]


@pytest.mark.parametrize(
    ("place", "hook"), [*(("module", hook) for hook in MODULE_HOOKS + HOOKS), *(("callback", hook) for hook in HOOKS)]
)
def test_wherever_an_exception_comes_from_the_best_epoch_is_on_disk(tmp_path, monkeypatch, place, hook):
    failing = Callback()
    made = prepare(tmp_path, [0.5, 0.9, 0.2], failing, module=Validated(), max_epochs=3)
    owner = made.module if place == "module" else failing
    untroubled = getattr(owner, hook)

    def trouble(*args, **kwargs):
        if not made.trainer.sanity_checking and made.trainer.current_epoch >= 2:
            raise RuntimeError("trouble")
        return untroubled(*args, **kwargs)

    monkeypatch.setattr(owner, hook, trouble)
    with pytest.raises(RuntimeError, match="trouble"):
        made.trainer.fit(made.module, data(), data(1))
    assert made.stopping.best_epoch == 1
    checkpoint = torch.load(made.stopping.best_model_path, weights_only=True)
    assert checkpoint["epoch"] == 1
    assert same(checkpoint["state_dict"], made.weights.of_epoch[1])
    assert list(tmp_path.rglob("boundary-*.ckpt")) == [Path(made.stopping.best_model_path)]
    # The module's `on_train_end` comes after all callbacks': by then the training has ended as it should.
    has_ended = hook == "on_fit_end" or (place, hook) == ("module", "on_train_end")
    assert ("RuntimeError: trouble" in made.stopping.stopping_reason) != has_ended


RESULTS = ("history", "best_epoch", "best_score", "best_model_path", "stopping_reason", "record_path")


class TestOutsideAFit:
    def test_tests_and_predictions_before_any_fit_do_nothing(self, tmp_path):
        made = prepare(tmp_path, [0.5])
        n_callbacks = len(made.trainer.callbacks)
        made.trainer.test(made.module, data(), verbose=False)
        assert len(made.trainer.callbacks) == n_callbacks
        assert (made.stopping.history, made.stopping.best_model_path, files(tmp_path)) == ([], "", [])

    def test_what_follows_a_fit_changes_nothing(self, tmp_path):
        made = run(tmp_path, [0.1, 0.9, 0.2], module=Validated(), max_epochs=3)

        def state():
            place = made.trainer.current_epoch, made.trainer.global_step, made.stopping.stopped_epoch
            of_files = files(tmp_path), Path(made.stopping.record_path).read_text()
            return *place, *of_files, *(getattr(made.stopping, name) for name in RESULTS if name != "history")

        before = state()
        for ckpt_path in (None, "best"):
            made.trainer.validate(made.module, data(), ckpt_path=ckpt_path, verbose=False)
            made.trainer.test(made.module, data(), ckpt_path=ckpt_path, verbose=False)
            made.trainer.predict(made.module, data(), ckpt_path=ckpt_path)
            assert state() == before
            assert same(made.module.state_dict(), made.weights.of_epoch[1])

    @pytest.mark.parametrize("copied", [lambda one: pickle.loads(pickle.dumps(one)), copy.deepcopy])  # noqa: S301
    def test_a_copy_is_as_the_original(self, tmp_path, copied):
        stopping = BoundaryUncertaintyStopping(n_neighbors=10, n_draws=1, patience=7, min_delta=0.25)
        fresh = copied(stopping)
        assert (vars(fresh.settings), fresh.source) == (vars(stopping.settings), stopping.source)
        trainer(tmp_path, stopping, max_epochs=2).fit(Classifier(), data())
        fitted = copied(stopping)
        for name in RESULTS:
            assert getattr(fitted, name) == getattr(stopping, name), name
        assert stopping.best_model_path


class TestOtherwise:
    """What `docs/lightning.md` says that differs."""

    @pytest.mark.parametrize(
        "kwargs",
        [
            {"val_check_interval": 0.5},
            {"check_val_every_n_epoch": 3},
            {"val_check_interval": 3, "check_val_every_n_epoch": None},
            {"limit_val_batches": 0},
        ],
    )
    def test_a_check_ends_each_epoch_whenever_the_module_is_validated(self, tmp_path, kwargs):
        made = run(tmp_path, [0.5, 0.9, 0.1], patience=2, module=Validated(), validation=data(1), trainer_kwargs=kwargs)
        assert epochs(made.stopping) == [0, 1, 2, 3]
        assert (made.stopping.best_epoch, made.stopping.stopped_epoch) == (1, 3)
        assert torch.load(made.stopping.best_model_path, weights_only=True)["global_step"] == 2 * N_STEPS

    def test_a_reason_to_stop_before_min_epochs_must_hold_again(self, tmp_path):
        script, settings = [0.1, NAN, 0.2], {"patience": 9, "trainer_kwargs": {"min_epochs": 4}}
        theirs, stopper, _ = run_lightning_s(tmp_path / "theirs", script, max_epochs=6, **settings)
        assert (theirs.current_epoch, stopper.stopped_epoch) == (4, 1)
        made = run(tmp_path, script, max_epochs=6, **settings)
        assert (made.trainer.current_epoch, made.stopping.stopped_epoch) == (6, None)

    def test_a_module_that_steps_its_optimiser_itself_is_saved(self, tmp_path):
        class Manual(Logging):
            automatic_optimization = False

            def training_step(self, batch, batch_idx):
                optimizer = self.optimizers(use_pl_optimizer=False)
                optimizer.zero_grad()
                self.manual_backward(super().training_step(batch, batch_idx))
                optimizer.step()

        script = [0.1, 0.9]
        _, _, keeper = run_lightning_s(tmp_path / "theirs", script, module=Manual(script), max_epochs=2)
        assert keeper.best_model_path == ""
        made = run(tmp_path, script, module=Manual(script), max_epochs=2)
        assert torch.load(made.stopping.best_model_path, weights_only=True)["epoch"] == 1
        assert same(made.module.state_dict(), made.weights.of_epoch[1])

    def test_a_trainer_that_saves_nothing_has_a_checkpoint_callback_all_the_same(self, tmp_path):
        made = run(tmp_path, [0.1, 0.9], max_epochs=2, trainer_kwargs={"enable_checkpointing": False})
        assert made.trainer.checkpoint_callback is not None
        with pytest.raises(ValueError, match=r'ckpt_path="best"'):
            made.trainer.test(dataloaders=data(), verbose=False)
        assert made.trainer.test(made.module, data(), verbose=False)
        assert files(tmp_path) == []

    def test_the_page_names_each_argument_of_lightning_s_that_is_missing_here(self):
        named = set(re.findall(r"`(\w+)`", PAGE.read_text()))
        ours = set(inspect.signature(BoundaryUncertaintyStopping).parameters)
        theirs = {name for cls in (EarlyStopping, ModelCheckpoint) for name in inspect.signature(cls).parameters}
        assert theirs - ours <= named
