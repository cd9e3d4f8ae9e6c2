"""`bu-torch cache` shows and deletes what trainings have kept, and nothing else."""

import os
import time

import pytest
from problems import blobs

from bu_torch import Signals
from bu_torch.cli import main
from bu_torch.run import user_cache


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two files of ours, a part that is written, one that was left, and a file of another program."""
    place = tmp_path / "cache"
    monkeypatch.setenv("BU_TORCH_CACHE", str(place))
    signals = Signals(10, 1).fit(*blobs())
    for days, digit in ((0, "a"), (3, "b")):
        file = place / f"bu-torch-{digit * 64}.npz"
        signals.save(file)
        os.utime(file, (time.time() - 86_400 * days - 60,) * 2)
    for name in ("c" * 41, "d" * 41):
        (place / f"bu-torch-{name}.{'0' * 16}.part").write_bytes(b"")
    os.utime(place / f"bu-torch-{'d' * 41}.{'0' * 16}.part", (0, 0))
    (place / f"bu-torch-{'e' * 64}.npz").write_bytes(bytes(10**6))
    return place


def test_shows_folder_number_size_and_age(folder, capsys):
    assert main(["cache"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"{folder}: 4 files, 0.0 MB"
    assert f"  0.0 MB, used 1 min ago: bu-torch-{'a' * 64}.npz" in lines
    assert f"  0.0 MB, used 3 d ago: bu-torch-{'b' * 64}.npz" in lines
    assert len(lines) == 4
    assert len(list(folder.iterdir())) == 5


def test_clears_what_is_ours_and_not_being_written(folder, capsys):
    assert main(["cache", "--clear"]) == 0
    assert capsys.readouterr().out == f"{folder}: deleted 3 files, 0.0 MB\n"
    left = sorted(file.name for file in folder.iterdir())
    assert left == [f"bu-torch-{'c' * 41}.{'0' * 16}.part", f"bu-torch-{'e' * 64}.npz"]
    assert main(["cache", "--clear"]) == 0
    assert capsys.readouterr().out == f"{folder}: deleted 0 files, 0.0 MB\n"


@pytest.mark.parametrize(("variable", "reason"), [("off", "BU_TORCH_CACHE turns it off"), ("~no/x", "no home folder")])
def test_says_why_there_is_no_folder(monkeypatch, capsys, variable, reason):
    monkeypatch.setenv("BU_TORCH_CACHE", variable.replace("~no", "~nobody-of-that-name"))
    assert user_cache.folder() is None
    for options in ([], ["--clear"]):
        assert main(["cache", *options]) == 0
        assert reason in capsys.readouterr().out


def test_a_folder_that_is_not_there_has_no_files(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BU_TORCH_CACHE", str(tmp_path / "none"))
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'none'}: 0 files, 0.0 MB\n"
