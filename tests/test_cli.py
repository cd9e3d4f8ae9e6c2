"""The command `bu-torch` itself, whatever it is asked to do."""

import pytest

from bu_torch import cli


@pytest.mark.parametrize("arguments", [["unknown"], ["rank", "--unknown"], ["report", ".", "--unknown"], []])
def test_arguments_that_are_not_known_end_the_command(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    said = capsys.readouterr().err
    assert "bu-torch" in said
    assert "error: " in said
