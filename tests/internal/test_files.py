"""Files that are there whole or not at all."""

import pytest

from bu_torch.internal.output import whole_file


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path):
    path = tmp_path / "folder" / "file.txt"
    for text in ("before", "after"):
        with whole_file(path) as part:
            part.write_text(text)
    with pytest.raises(ZeroDivisionError), whole_file(path) as part:
        part.write_text(f"half {1 / 0}")
    assert path.read_text() == "after"
    assert [*path.parent.iterdir()] == [path]
