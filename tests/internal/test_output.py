"""Files that are there whole or not at all, and signs of life in long work."""

import time

import pytest
from readable import WHOLE

from bu_torch import read_samples
from bu_torch.internal import output
from bu_torch.internal.output import elapsed_time, showing_progress, whole_file


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
def test_long_work_shows_that_it_goes_on_if_bars_are_shown(is_shown, monkeypatch, capsys):
    monkeypatch.setattr(output, "_BAR_DELAY", 0.05)
    monkeypatch.setattr(output, "_TICK", 0.02)
    with showing_progress(is_shown):
        with elapsed_time("work"):
            time.sleep(0.2)
        monkeypatch.setattr(output, "_BAR_DELAY", 0)
        read_samples(WHOLE)
    shown = capsys.readouterr().err
    assert ("work: 00:00" in shown) == ("reads:   0%" in shown) == is_shown
