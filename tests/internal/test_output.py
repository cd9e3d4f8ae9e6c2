"""Files that are there whole or not at all, and a bar while samples are read."""

import pytest
from readable import WHOLE

from bu_torch import read_samples
from bu_torch.internal import output
from bu_torch.internal.output import showing_progress, whole_file


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path):
    path = tmp_path / "folder" / "file.txt"
    for text in ("before", "after"):
        with whole_file(path) as part:
            part.write_text(text)
    with pytest.raises(ZeroDivisionError), whole_file(path) as part:
        part.write_text(f"half {1 / 0}")
    assert path.read_text() == "after"
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize("is_shown", [True, False])
def test_reading_shows_that_it_goes_on_if_bars_are_shown(is_shown, monkeypatch, capsys):
    monkeypatch.setattr(output, "_BAR_DELAY", 0)
    with showing_progress(is_shown):
        read_samples(WHOLE)
    assert ("reads:   0%" in capsys.readouterr().err) == is_shown
