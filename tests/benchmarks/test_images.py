"""The benchmark of images, and the command that compares with committed results."""

import json

import pytest
import torch


def test_kinds_are_apart_and_what_they_say(images):
    assert not set(images.TUNING) & set(images.UNSEEN)
    case = images.Case("digits", 0.2, 1, "digits_augmented", 2)
    (inputs, noisy), (test, clean), net = images.prepare(case)
    assert inputs.shape == (800, 1, 8, 8)
    assert len(test) == len(clean) == 997
    assert net(inputs[:3]).shape == (3, 10)
    quiet = images.prepare(images.Case("digits", 0.0, 1, "digits_augmented", 2))
    assert torch.equal(quiet[0][0], inputs)
    assert 0.1 < float((quiet[0][1] != noisy).float().mean()) < 0.26  # a tenth of those drawn anew stays what it was
    assert torch.equal(quiet[1][1], clean)


def test_augmentation_shifts_within_its_reach(images):
    point = torch.zeros(1, 1, 9, 9)
    point[..., 4, 4] = 1
    dataset = images.Augmented(point, torch.zeros(1))
    seen = {tuple(dataset[0][0].nonzero()[0].tolist()) for _ in range(500)}
    assert {row for _, row, _ in seen} == {column for _, _, column in seen} == set(range(1, 8))


@pytest.mark.parametrize(("moved", "expected"), [(0.004, True), (0.006, False)])
def test_what_moved_is_told(check, tmp_path, monkeypatch, moved, expected):
    def result(folder, change=0.0):
        cases = [{"rule": rule, "excess": 0.02 + change * (rule == "trust score")} for rule in check.RULES]
        (folder / "images-quick.json").write_text(json.dumps({"cases": cases}))

    result(tmp_path)
    monkeypatch.setattr(check, "QUICK", {"images-quick": lambda given: result(check.Path(given[-1]), moved)})
    assert check.main(["--results", str(tmp_path)]) is expected
    assert check.main(["--results", str(tmp_path), "--accept"]) is True
    assert check.main(["--results", str(tmp_path)]) is True
