"""Files that are there whole or not at all, whoever else writes to the folder."""

import os
import stat

import pytest

from bu_torch.internal import files
from bu_torch.internal.files import whole_file


@pytest.mark.parametrize("is_foreseen", [False, True])
def test_a_link_planted_at_the_name_of_the_part_is_not_followed(tmp_path, monkeypatch, is_foreseen):
    precious = tmp_path / "precious.txt"
    precious.write_text("precious")
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / f"file.npz.{os.getpid()}.part").symlink_to(precious)
    if is_foreseen:
        monkeypatch.setattr(files.secrets, "token_hex", lambda n_bytes: str(os.getpid()))
        with pytest.raises(FileExistsError), whole_file(folder / "file.npz") as part:
            part.write_text("other")
    else:
        with whole_file(folder / "file.npz") as part:
            part.write_text("other")
        assert (folder / "file.npz").read_text() == "other"
    assert precious.read_text() == "precious"


def test_the_umask_decides_who_may_read(tmp_path):
    before = os.umask(0o027)
    try:
        with whole_file(tmp_path / "file.txt") as part:
            part.write_text("text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file.txt").stat().st_mode) == 0o640
