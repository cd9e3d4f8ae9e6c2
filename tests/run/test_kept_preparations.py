"""A run with `cache` finds what an earlier one has prepared; a run without leaves nothing."""

import pytest
import torch
from problems import Classifier, blobs, loader, trainer
from torch import nn

from bu_torch import BoundaryUncertaintyStopper, BoundaryUncertaintyStopping


def fit(folder, callback, samples=None, module=None, max_epochs=2, ckpt_path=None, **kwargs):
    torch.manual_seed(0)
    made = trainer(folder, callback, max_epochs=max_epochs, enable_checkpointing=False, **kwargs)
    made.fit(module or Classifier(), loader(*(samples or blobs())), ckpt_path=ckpt_path, weights_only=False)
    made.save_checkpoint(folder / "last.ckpt")
    return callback.history, callback.tracker.check_setup


def stopping(cache, **settings):
    return BoundaryUncertaintyStopping(**{"n_neighbors": 20, "n_draws": 2, "cache": cache, **settings})


def test_the_default_leaves_nothing_in_the_home_folder(tmp_path, monkeypatch):
    for name in ("HOME", "USERPROFILE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    _, check_setup = fit(tmp_path, BoundaryUncertaintyStopping())
    BoundaryUncertaintyStopper(*blobs()).check(nn.Linear(4, 3))
    assert check_setup.kept_in is None
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("name", ["mine.npz", "folder"])
def test_a_second_run_finds_what_the_first_has_prepared(tmp_path, log, name):
    first, kept = fit(tmp_path, stopping(tmp_path / name))
    file = kept.kept_in
    assert file == (tmp_path / name if name == "mine.npz" else tmp_path / name / f"{kept.fingerprint}.npz")
    said = "kept neighbours, distances, class probabilities and labels of 120 samples for later runs"
    assert f"{said}: {file}. To change it: `cache=None`." in log.text
    assert "an earlier run" not in log.text
    log.clear()
    second, found = fit(tmp_path, stopping(str(tmp_path / name), patience=3))
    assert f"loaded the preparation of an earlier run: {file}. To change it: `cache=None`." in log.text
    assert said not in log.text
    assert (found.found_in, found.kept_in, found.about) == (file, None, kept.about)
    assert second == first


@pytest.mark.parametrize("other", [{"seed": 1}, {"class_weight": [1.0, 2.0, 1.0]}, {"samples": blobs(seed=1)}])
def test_a_folder_holds_a_file_for_each_set_of_samples_and_settings(tmp_path, other):
    (tmp_path / "many.files").mkdir()
    samples = {"samples": other.pop("samples")} if "samples" in other else {}
    files = [
        fit(tmp_path, stopping(tmp_path / "many.files", **settings), **data)[1].kept_in
        for settings, data in (({}, {}), (other, samples))
    ]
    assert set(files) == set((tmp_path / "many.files").iterdir())
    assert len(set(files)) == 2


def test_images_are_found_again_by_other_networks_and_by_a_run_that_resumes(tmp_path):
    generator = torch.Generator().manual_seed(0)
    images, direction = torch.randn(120, 1, 6, 6, generator=generator), torch.randn(36, generator=generator)
    data = images, (images.flatten(1) @ direction > 0).long()
    settings = {"cache": tmp_path / "kept", "n_draws": 1}

    def classifier(width):
        module = Classifier(36, 2)
        module.net[0], module.net[1], module.net[4] = nn.Linear(36, width), nn.BatchNorm1d(width), nn.Linear(width, 2)
        return module

    narrow, kept = fit(tmp_path, stopping(**settings), data, classifier(8))
    wide, found = fit(tmp_path, stopping(**settings), data, classifier(16))
    assert found.found_in == kept.kept_in is not None
    assert narrow != wide
    resumed, again = fit(tmp_path, stopping(**settings), data, classifier(16), 3, tmp_path / "last.ckpt")
    assert again.found_in == kept.kept_in
    assert resumed[:2] == wide
    assert len(resumed) == 3


def test_a_trial_run_leaves_nothing(tmp_path):
    fit(tmp_path, stopping(tmp_path / "kept"), fast_dev_run=True)
    assert not (tmp_path / "kept").exists()


def test_a_loop_of_one_s_own_finds_it_too_and_leaves_no_sample(tmp_path, caplog):
    inputs, labels = blobs()
    stoppers = [BoundaryUncertaintyStopper(inputs, labels, n_neighbors=20, cache=tmp_path / "kept") for _ in range(2)]
    model = nn.Linear(4, 3)
    with caplog.at_level("INFO", logger="bu_torch"):
        for stopper in stoppers:
            stopper.check(model)
    (file,) = (tmp_path / "kept").iterdir()
    assert f"labels of 120 samples for later runs: {file}." in caplog.text
    assert f"loaded the preparation of an earlier run: {file}." in caplog.text
    assert stoppers[0].history == stoppers[1].history
    torch.save(stoppers[1].state_dict(), tmp_path / "state.pt")
    moved = stoppers[1].tracker.check_setup.signals.perturbed_inputs
    content = file.read_bytes() + (tmp_path / "state.pt").read_bytes()
    assert not [row for rows in (inputs, moved) for row in rows.numpy() if row.tobytes() in content]


def test_numbers_beside_categories_are_found_again(tmp_path):
    numbers, labels = blobs()
    both = {"numbers": numbers, "categories": labels.unsqueeze(1) % 2}

    def again():
        stopper = BoundaryUncertaintyStopper(both, labels, n_neighbors=20, cache=tmp_path / "kept")
        stopper.check(lambda numbers, categories: numbers[:, :3] + categories)
        return stopper.history, stopper.tracker.check_setup

    (first, kept), (second, found) = again(), again()
    assert found.found_in == kept.kept_in is not None
    assert second == first
