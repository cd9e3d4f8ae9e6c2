"""The settings of ruff and mypy pass."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=["check", "format"])
def test_ruff(command):
    result = subprocess.run([sys.executable, "-m", "ruff", *command, ROOT], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_mypy(tmp_path):
    """On a copy with the callbacks where they are installed; mypy keeps what it knows of the packages they import."""
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "bu_torch", tmp_path / "bu_torch", ignore=skip)
    shutil.copytree(ROOT / "callbacks", tmp_path / "bu_torch" / "callbacks", ignore=skip)
    options = ["--cache-dir", ROOT / ".mypy_cache", "--config-file", ROOT / "pyproject.toml", "-p", "bu_torch"]
    result = subprocess.run(
        [sys.executable, "-m", "mypy", *options], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert result.returncode == 0, result.stdout + result.stderr
