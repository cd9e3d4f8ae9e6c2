"""Files that are there whole or not at all, and a line while samples are read."""

import pytest
from readable import WHOLE

from bu_torch import read_samples
from bu_torch.internal.output import whole_file
from bu_torch.samples import samples


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path):
    path = tmp_path / "folder" / "file.txt"
    for text in ("before", "after"):
        with whole_file(path) as part:
            part.write_text(text)
    with pytest.raises(ZeroDivisionError), whole_file(path) as part:
        part.write_text(f"half {1 / 0}")
    assert path.read_text() == "after"
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize("seconds", [-1, 60])
def test_reading_says_once_that_it_goes_on_if_it_takes_long(seconds, monkeypatch, log):
    monkeypatch.setattr(samples, "_SILENT", seconds)
    read_samples(WHOLE)
    assert ["read 120 samples" in line for line in log.messages] == [True] * (seconds < 0)
