"""A run with `cache` finds what an earlier one has prepared; a run without leaves nothing."""

import re

import pytest
import torch
from problems import blobs, fit
from torch import nn

from bu_torch import BoundaryUncertaintyStopper, BoundaryUncertaintyStopping

FOUND = r"loaded the preparation of an earlier run: (\S+)\. To change it: `cache=None`\."
KEPT = r"kept neighbours, distances, class probabilities and labels of 120 samples for later runs: (\S+)\. To change it"


@pytest.fixture
def files(log, caplog):
    """A function that tells which files were kept and which were found since it was called last."""
    caplog.set_level("INFO", logger="bu_torch")

    def files():
        found = tuple(re.findall(said, log.text) for said in (KEPT, FOUND))
        log.clear()
        return found

    return files


def trained(folder, **settings):
    torch.manual_seed(0)
    fit(folder, stopping := BoundaryUncertaintyStopping(n_neighbors=20, n_draws=2, **settings), max_epochs=2)
    return stopping


def checked(cache, samples=None, network=None, **settings):
    stopper = BoundaryUncertaintyStopper(*(samples or blobs()), n_neighbors=20, cache=cache, **settings)
    torch.manual_seed(0)
    stopper.check(network or nn.Linear(4, 3))
    return stopper


def test_the_default_leaves_nothing_in_the_home_folder(tmp_path, monkeypatch, files):
    for name in ("HOME", "USERPROFILE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    trained(tmp_path)
    BoundaryUncertaintyStopper(*blobs()).check(nn.Linear(4, 3))
    assert files() == ([], [])
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("name", ["mine.npz", "folder"])
def test_a_second_run_finds_what_the_first_has_prepared(tmp_path, files, name):
    first = trained(tmp_path, cache=tmp_path / name)
    (file,) = [tmp_path / name] if name == "mine.npz" else (tmp_path / name).glob("*.npz")
    assert files() == ([str(file)], [])
    second = trained(tmp_path, cache=str(tmp_path / name), patience=3)
    assert files() == ([], [str(file)])
    assert second.history == first.history


@pytest.mark.parametrize("other", [{"seed": 1}, {"class_weight": [1.0, 2.0, 1.0]}, {"samples": blobs(seed=1)}])
def test_a_folder_holds_a_file_for_each_set_of_samples_and_settings(tmp_path, files, other):
    (tmp_path / "many.files").mkdir()
    for settings in ({}, other):
        checked(tmp_path / "many.files", **settings)
    kept, found = files()
    assert {*kept} == {str(file) for file in (tmp_path / "many.files").iterdir()}
    assert (len(set(kept)), found) == (2, [])


def test_images_are_found_again_by_other_networks_and_by_a_run_that_resumes(tmp_path, files):
    generator = torch.Generator().manual_seed(0)
    images, direction = torch.randn(120, 1, 6, 6, generator=generator), torch.randn(36, generator=generator)
    data = images, (images.flatten(1) @ direction > 0).long()
    networks = [nn.Sequential(nn.Flatten(), nn.Linear(36, width), nn.Linear(width, 2)) for width in (8, 16)]
    narrow, wide = (checked(tmp_path / "kept", data, network, n_draws=1) for network in networks)
    (file,), found = files()
    assert found == [file]
    assert narrow.history != wide.history
    resumed = BoundaryUncertaintyStopper(*data, n_neighbors=20, n_draws=1, cache=tmp_path / "kept")
    resumed.load_state_dict(wide.state_dict())
    resumed.check(networks[1])
    assert files() == ([], [file])
    assert (resumed.history[:1], len(resumed.history)) == (wide.history, 2)


def test_a_trial_run_leaves_nothing(tmp_path):
    fit(tmp_path, BoundaryUncertaintyStopping(n_neighbors=20, cache=tmp_path / "kept"), fast_dev_run=True)
    assert not (tmp_path / "kept").exists()


def test_neither_a_file_nor_a_state_holds_a_sample(tmp_path):
    inputs, labels = blobs()
    given = [inputs]
    stopper = checked(tmp_path / "kept", (inputs, labels), lambda x: given.append(x) or x[:, :3])
    torch.save(stopper.state_dict(), tmp_path / "state.pt")
    (file,) = (tmp_path / "kept").iterdir()
    content = file.read_bytes() + (tmp_path / "state.pt").read_bytes()
    pairs = [part.tobytes() for rows in given for row in rows.numpy() for part in (row[:2], row[2:])]
    assert len(given) > 1
    assert not [pair for pair in pairs if pair in content]


def test_numbers_beside_categories_are_found_again(tmp_path, files):
    numbers, labels = blobs()
    samples = {"numbers": numbers, "categories": labels.unsqueeze(1) % 2}, labels
    one, other = (checked(tmp_path, samples, lambda numbers, categories: numbers[:, :3] + categories) for _ in range(2))
    (file,), found = files()
    assert found == [file]
    assert one.history == other.history
