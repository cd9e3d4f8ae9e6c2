"""What an earlier run has prepared is found again in the user's cache folder."""

import contextlib
import os
import re
import stat
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import platformdirs
import pytest
import torch
from problems import Classifier, blobs, loader, trainer
from torch import nn

from bu_torch import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopper, BoundaryUncertaintyStopping
from bu_torch.internal.files import whole_file
from bu_torch.run import user_cache
from bu_torch.run.user_cache import fit_or_load
from bu_torch.signals.measuring import Signals


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BU_TORCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(user_cache, "LEAST_SECONDS", 0.0)
    return tmp_path / "cache"


def fit(folder, callback, samples=None, make=Classifier, **kwargs):
    torch.manual_seed(0)
    trainer(folder, callback, max_epochs=2, **kwargs).fit(make(), loader(*(samples or blobs())))
    return callback


def stopping(**settings):
    return BoundaryUncertaintyStopping(n_neighbors=20, **settings)


@pytest.fixture
def first(tmp_path, folder):
    """The callback of a run that has kept its preparation."""
    return fit(tmp_path, stopping())


@pytest.fixture
def file(first):
    return first.tracker.groundwork.kept_in


def found_in(callback):
    return callback.tracker.groundwork.found_in


@pytest.mark.parametrize("cache", ["auto", "own.npz"])
def test_numbers_beside_categories_are_found_again(tmp_path, folder, cache):
    numbers, labels = blobs()
    both = {"numbers": numbers, "categories": labels.unsqueeze(1) % 2}
    cache = cache if cache == "auto" else tmp_path / cache

    def again():
        stopper = BoundaryUncertaintyStopper(both, labels, n_neighbors=20, cache=cache)
        stopper.check(lambda numbers, categories: numbers[:, :3] + categories)
        return stopper.history, stopper._tracker.groundwork

    (first, kept), (second, found) = again(), again()
    assert (kept.found_in, found.found_in) == (None, kept.kept_in)
    assert found.found_in is not None
    assert second == first


def test_a_second_run_finds_what_the_first_has_prepared(tmp_path, folder, log):
    first = fit(tmp_path, stopping())
    (file,) = folder.iterdir()
    assert os.name == "nt" or (folder.stat().st_mode | file.stat().st_mode) & 0o077 == 0  # for no other user to read
    assert "an earlier run" not in log.text
    assert (
        f"kept neighbours, distances, class probabilities and labels of 120 samples for later runs: {file}. To"
        in log.text
    )
    assert f"{file}. To change it: `cache=None` or `BU_TORCH_CACHE=off`." in log.text
    log.clear()
    second = fit(tmp_path, stopping(patience=3))  # which has nothing to do with it
    assert f"loaded the preparation of an earlier run: {file}. To change it: `cache=None`." in log.text
    assert "for later runs" not in log.text
    assert second.history == first.history
    assert second.tracker.groundwork.about == first.tracker.groundwork.about
    assert list(folder.iterdir()) == [file]


@pytest.mark.parametrize(
    "other",
    [
        {"n_draws": 3},
        {"n_neighbors": 21},
        {"seed": 1},
        {"class_weight": [1.0, 2.0, 1.0]},
        {"perturbation": "neighbors"},
        {"samples": blobs(seed=1)},
    ],
)
def test_other_samples_or_settings_are_prepared_anew(tmp_path, folder, other):
    kept_in = fit(tmp_path, stopping(n_draws=2)).tracker.groundwork.kept_in
    settings = {"n_neighbors": 20, "n_draws": 2, **other}
    samples = settings.pop("samples", None)
    assert found_in(fit(tmp_path, BoundaryUncertaintyStopping(**settings), samples)) is None
    assert kept_in in folder.iterdir()


@pytest.mark.parametrize(
    "settings",
    [
        {"cache": None},
        {"feature_extractor": nn.Flatten()},
        {"feature_extractor": "module"},
        {"perturbation": lambda x, distance, generator: x + 0.1},
    ],
)
def test_what_is_not_asked_for_or_depends_on_code_is_not_kept(tmp_path, folder, settings):
    fit(tmp_path, BoundaryUncertaintyMonitor(n_neighbors=20, **settings))
    assert not folder.exists()


def squares(n=120):
    """Images (n, 1, 6, 6) of noise, and the classes that a fixed direction says they are of."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(n, 1, 6, 6, generator=generator)
    direction = torch.randn(36, generator=generator)
    return images + torch.linspace(-1, 1, 6), (images.flatten(1) @ direction > 0).long(), direction


def test_images_are_found_again_whatever_the_network(tmp_path, folder, log):
    images, labels, _ = squares()
    histories = []

    def of_width(width):
        module = Classifier(36, 2)
        module.net[0], module.net[1], module.net[4] = nn.Linear(36, width), nn.BatchNorm1d(width), nn.Linear(width, 2)
        return module

    for width in (16, 16, 8):
        log.clear()
        callback = fit(tmp_path, stopping(), (images, labels), partial(of_width, width))
        histories.append(callback.history)
        assert callback.tracker.groundwork.about["data"]["space"] == "inputs"
        assert "Neighbours are found in" in log.text
        assert (found_in(callback) is None) == (len(histories) == 1)
    assert histories[0] == histories[1] != histories[2]
    assert len(list(folder.iterdir())) == 1


def test_what_is_found_among_the_network_s_own_features_is_not_kept(tmp_path, folder):
    images, labels, direction = squares(240)

    def narrow():
        module = Classifier(36, 2)
        module.net = nn.Sequential(nn.Linear(36, 1), nn.Linear(1, 2))
        module.net[0].weight.data.copy_(direction)
        return module

    for _ in range(2):
        callback = fit(tmp_path, stopping(), (images, labels), narrow)
        assert callback.tracker.groundwork.about["data"]["space"] == "module"
        assert found_in(callback) is None
    assert not folder.exists()


@pytest.mark.parametrize(
    ("space", "settings"), [("patches", {"feature_extractor": "patches"}), ("tokens", {"perturbation": "tokens"})]
)
def test_spaces_of_images_and_texts_are_found_again(folder, space, settings):
    images, labels, _ = squares()
    inputs, found = images if space == "patches" else (images.flatten(1) > 0).long(), []
    for _ in range(2):
        signals = Signals(20, n_draws=1, **settings)
        found.append(fit_or_load(signals, inputs, labels, "auto"))
        assert signals.boundary.space_name_ == space
        found.append(signals.measure(signals.perturbed_inputs.flatten(1)[:, :2].float()).values)
    assert found[0].kept_in == found[2].found_in is not None
    assert found[1] == found[3]


def test_a_run_that_resumes_finds_the_space_that_it_has_chosen(tmp_path, folder):
    def run(max_epochs, **options):
        torch.manual_seed(0)
        callback, data = stopping(), loader(*squares()[:2])
        made = trainer(tmp_path, callback, max_epochs=max_epochs, enable_checkpointing=False)
        made.fit(Classifier(36, 2), data, **options)
        return callback, made

    whole, _ = run(3)
    first, made = run(2)
    made.save_checkpoint(tmp_path / "last.ckpt")
    second, _ = run(3, ckpt_path=tmp_path / "last.ckpt", weights_only=False)
    assert found_in(second) == found_in(first) is not None
    assert len(second.history) == 3
    assert second.history[:2] == whole.history[:2]


@pytest.mark.parametrize("value", ["off", "", "0", "None"])
def test_the_variable_turns_it_off(tmp_path, monkeypatch, value):
    monkeypatch.setenv("BU_TORCH_CACHE", value)
    monkeypatch.setattr(user_cache, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(user_cache, "user_cache_path", lambda *_, **__: tmp_path / "platform")
    fit(tmp_path, stopping())
    assert not (tmp_path / "platform").exists()


def test_the_platform_says_where(monkeypatch):
    monkeypatch.delenv("BU_TORCH_CACHE")
    assert user_cache.folder() == Path(platformdirs.user_cache_dir("bu-torch", appauthor=False))


def test_a_trial_run_and_what_took_no_time_leave_nothing(tmp_path, folder, monkeypatch):
    fit(tmp_path, stopping(), fast_dev_run=True)
    monkeypatch.setattr(user_cache, "LEAST_SECONDS", 1000.0)
    fit(tmp_path, stopping())
    assert not folder.exists()


def test_a_loop_of_one_s_own_finds_it_too(folder, caplog):
    stoppers, model = [BoundaryUncertaintyStopper(*blobs(), n_neighbors=20) for _ in range(2)], nn.Linear(4, 3)
    with caplog.at_level("INFO", logger="bu_torch"):
        for stopper in stoppers:
            stopper.check(model)
    (file,) = folder.iterdir()
    assert f"labels of 120 samples for later runs: {file}." in caplog.text
    assert f"loaded the preparation of an earlier run: {file}." in caplog.text
    assert stoppers[0].history == stoppers[1].history
    assert [stopper._tracker.groundwork.found_in is None for stopper in stoppers] == [True, False]


def test_a_loop_of_one_s_own_says_on_stderr_what_it_has_kept_once(folder, capfd):
    for n_lines in (1, 0):
        BoundaryUncertaintyStopper(*blobs(), n_neighbors=20).check(nn.Linear(4, 3))
        out, said = capfd.readouterr()
        (file,) = folder.iterdir()
        assert said.count(f"and labels of 120 samples for later runs: {file}. To change it: `cache=None` or") == n_lines
        assert out == ""


@pytest.mark.parametrize("file", ["auto", "mine.npz"])
def test_no_sample_is_in_what_a_run_leaves(tmp_path, folder, file):
    inputs, labels = blobs()
    cache = file if file == "auto" else str(tmp_path / file)
    stopper = BoundaryUncertaintyStopper(inputs, labels, n_neighbors=20, cache=cache)
    stopper.check(nn.Linear(4, 3))
    moved = stopper._tracker.groundwork.signals.perturbed_inputs.numpy()
    torch.save(stopper.state_dict(), tmp_path / "state.pt")
    content = stopper._tracker.groundwork.kept_in.read_bytes() + (tmp_path / "state.pt").read_bytes()
    assert not [row for rows in (inputs.numpy(), moved) for row in rows if row.tobytes() in content]


def test_without_a_home_folder_nothing_is_kept_and_a_line_says_so(tmp_path, folder, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("BU_TORCH_CACHE")
    for place in (refuse, lambda *_, **__: Path("~/.cache/bu-torch")):
        monkeypatch.setattr(user_cache, "user_cache_path", place)
        monkeypatch.chdir(tmp_path)
        with pytest.warns(UserWarning, match=r"not kept for the next run: no home folder is known\. To turn .* off"):
            assert len(fit(tmp_path, stopping()).history) == 2
        assert not (tmp_path / "~").exists()


def test_a_file_of_another_user_is_not_read(tmp_path, monkeypatch, first, file):
    monkeypatch.setattr(os, "getuid", lambda: file.stat().st_uid + 1, raising=False)
    with pytest.warns(UserWarning, match=re.escape(f"The cache file {file} is not read (another user owns it)")):
        again = fit(tmp_path, stopping())
    assert (found_in(again), again.tracker.groundwork.kept_in) == (None, file)
    assert again.history == first.history


@pytest.mark.parametrize("kind", ["pipe", "link", "link to a file of ours"])
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_what_is_no_regular_file_is_not_read(tmp_path, file, kind):
    if kind == "link to a file of ours":
        file.rename(tmp_path / "elsewhere")
    else:
        file.unlink()
        (tmp_path / "elsewhere").write_text("precious")
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    again = fit(tmp_path, stopping())
    assert (found_in(again), again.tracker.groundwork.kept_in) == (None, file)
    assert stat.S_ISREG(file.lstat().st_mode)
    assert (tmp_path / "elsewhere").read_bytes() == before


def test_a_damaged_file_is_made_anew(tmp_path, first, file):
    whole = file.read_bytes()
    file.write_bytes(whole[:1000])
    again = fit(tmp_path, stopping())
    assert found_in(again) is None
    assert again.history == first.history
    assert file.stat().st_size == len(whole)


def test_a_folder_that_cannot_be_written_to_does_no_harm_and_is_named(tmp_path, folder):
    folder.write_text("a file")
    with pytest.warns(UserWarning, match=re.escape(f"The preparation cannot be kept in {folder}")):
        assert len(fit(tmp_path, stopping()).history) == 2
    stopper = BoundaryUncertaintyStopper(*blobs(), n_neighbors=20)
    with pytest.warns(UserWarning, match="To turn the cache off: `cache=None` or `BU_TORCH_CACHE=off`"):
        stopper.check(nn.Linear(4, 3))


def test_a_file_of_ones_own_is_named_when_it_is_written(tmp_path, folder, log):
    file = tmp_path / "mine.npz"
    fit(tmp_path, stopping(cache=str(file)))
    assert f"labels of 120 samples for later runs: {file}. To change it: `cache=None`." in log.text
    log.clear()
    fit(tmp_path, stopping(cache=str(file)))
    assert "for later runs" not in log.text
    assert f"loaded the preparation of an earlier run: {file}." in log.text
    assert not folder.exists()


def test_other_versions_have_files_of_their_own(tmp_path, folder, monkeypatch, first):
    monkeypatch.setattr(user_cache, "versions", lambda: {"torch": "99"})
    assert found_in(fit(tmp_path, stopping())) is None
    assert len(list(folder.iterdir())) == 2


def test_files_of_others_and_parts_that_are_written_stay(tmp_path, folder, monkeypatch):
    folder.mkdir()
    monkeypatch.setattr(user_cache, "_MOST_BYTES", 0)
    mine = folder / "mine.npz"
    mine.write_bytes(b"x" * 1000)
    whole = user_cache.file_of("some fingerprint", "inputs", "cpu")
    with contextlib.suppress(FileNotFoundError), whole_file(whole) as old, whole_file(whole) as new:
        os.utime(old, (0, 0))  # its writer is long gone
        assert fit(tmp_path, stopping()).tracker.groundwork.kept_in is None  # nothing is announced that is not there
        assert sorted(folder.iterdir()) == sorted([mine, new])


def test_a_file_of_another_program_stays_whatever_its_name(tmp_path, folder, monkeypatch):
    folder.mkdir()
    monkeypatch.setattr(user_cache, "_MOST_BYTES", 0)
    for name in (f"{'0' * 64}.npz", f"bu-torch-{'0' * 64}.npz", f"bu-torch-{'0' * 41}.{'0' * 16}.part"):
        np.savez((folder / name).open("wb"), weights=np.zeros(9))
        os.utime(folder / name, (0, 0))
    (folder / f"bu-torch-{'1' * 64}.npz").mkdir()
    before = set(folder.iterdir())
    assert fit(tmp_path, stopping()).tracker.groundwork.kept_in is None
    assert set(folder.iterdir()) == before


@pytest.mark.parametrize("ages", [(31 * 86_400, 31 * 86_400), (100, 50)], ids=["thirty days", "no room"])
def test_what_is_not_used_for_long_goes_with_the_next_write(tmp_path, folder, monkeypatch, file, ages):
    other = fit(tmp_path, stopping(seed=1)).tracker.groundwork.kept_in
    if ages[0] == 100:
        monkeypatch.setattr(user_cache, "_MOST_BYTES", int(2.5 * file.stat().st_size))
    for age, one in zip(ages, (file, other), strict=True):
        os.utime(one, (time.time() - age,) * 2)
    assert found_in(fit(tmp_path, stopping())) == file  # which uses the oldest
    assert set(folder.iterdir()) == {file, other}
    new = fit(tmp_path, stopping(seed=2)).tracker.groundwork.kept_in
    assert set(folder.iterdir()) == {file, new}


def test_what_is_too_large_is_not_written(tmp_path, monkeypatch, file):
    monkeypatch.setattr(user_cache, "MOST_BYTES_EACH", file.stat().st_size // 2)
    written = []
    monkeypatch.setattr(Signals, "save", lambda signals, path: written.append(path))
    assert fit(tmp_path, stopping(seed=3)).tracker.groundwork.kept_in is None
    assert not written
    monkeypatch.setattr(user_cache, "MOST_BYTES_EACH", file.stat().st_size)
    fit(tmp_path, stopping(seed=3))
    assert len(written) == 1


@pytest.mark.slow
def test_several_runs_at_once_leave_one_whole_file(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from problems import blobs\n"
        "from torch import nn\n"
        "from bu_torch import BoundaryUncertaintyStopper\n"
        "from bu_torch.run import user_cache\n"
        "user_cache.LEAST_SECONDS = 0\n"
        "stopper = BoundaryUncertaintyStopper(*blobs(), n_neighbors=20)\n"
        "stopper.check(nn.Linear(4, 3))\n"
    )
    environment = {**os.environ, "BU_TORCH_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    runs = [subprocess.Popen([sys.executable, "-W", "ignore", script], env=environment) for _ in range(2)]
    assert [run.wait(timeout=120) for run in runs] == [0, 0]
    assert [file.suffix for file in (tmp_path / "cache").iterdir()] == [".npz"]
