"""The command that compares with committed results."""

import pandas as pd
import pytest


@pytest.mark.parametrize(("moved", "expected"), [(0.004, True), (0.006, False)])
def test_what_moved_is_told(check, tmp_path, monkeypatch, moved, expected):
    def result(folder, change=0.0):
        errors = [0.1 + change * (rule == "trust score") for rule in check.RULES]
        rows = pd.DataFrame({"rule": check.RULES, "test_error": errors, "best": 0.08})
        rows.to_csv(check.quality.file_of("quick", folder), index=False)

    result(tmp_path)
    monkeypatch.setattr(check.quality, "main", lambda given: result(check.Path(given[-1]), moved))
    assert check.main(["--results", str(tmp_path)]) is expected
    assert check.main(["--results", str(tmp_path), "--accept"]) is True
    assert check.main(["--results", str(tmp_path)]) is True
