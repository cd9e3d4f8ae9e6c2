"""The command `bu-torch` itself, whatever it is asked to do."""

import os
import subprocess
import sys

import pytest
from records import write_run


@pytest.mark.parametrize("said", ["report FOLDER", "--version"])
def test_a_reader_that_ends_early_is_no_error(tmp_path, said):
    write_run(tmp_path)
    command = f"{sys.executable} -m bu_torch {said.replace('FOLDER', str(tmp_path))} | true; echo ${{PIPESTATUS[0]}}"
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=buffered)
    assert (result.stdout, result.stderr) == ("0\n", "")
