"""The command `bu-torch` itself, whatever it is asked to do."""

import os
import sys

import pytest
from records import write_run

from bu_torch.cli import main


@pytest.mark.parametrize("asked", [["report", "FOLDER"], ["--version"]])
def test_a_reader_that_ends_early_is_no_error(tmp_path, monkeypatch, asked):
    write_run(tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:  # closing it writes what is left, as Python does when it exits
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main([word.replace("FOLDER", str(tmp_path)) for word in asked]) == 0
