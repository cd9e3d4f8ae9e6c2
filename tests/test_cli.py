"""The command `bu-torch` itself, whatever it is asked to do."""

import pytest

from bu_torch import cli


@pytest.mark.parametrize("arguments", [["unknown"], ["rank", "--unknown"], ["report", ".", "--unknown"], []])
def test_arguments_that_are_not_known_are_refused_by_name(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    said = capsys.readouterr().err
    assert "bu-torch" in said
    assert (arguments[-1] if arguments else "COMMAND") in said
