"""The command `bu-torch` itself, whatever it is asked to do."""

import pytest

from bu_torch import cli

RED = "\x1b[31m"


@pytest.mark.parametrize(
    "arguments", [[f"--x{RED}"], [f"{RED}x"], ["rank", f"--x{RED}"], ["report", ".", f"--x{RED}"], ["rank", RED]]
)
def test_arguments_that_are_refused_are_shown_without_escape_sequences(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    said = capsys.readouterr().err
    assert "bu-torch" in said
    assert "error: " in said
    assert "\x1b" not in said
