"""The benchmark of transformers: its data, its networks, its table, and one quick run that is resumed."""

import importlib.util
import json

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")
pytest.importorskip("efficientnet_lite_pytorch")


@pytest.fixture(autouse=True)
def made(finetune, monkeypatch):
    """Random words in place of descriptions, and noise in place of letters."""
    sections = (*finetune.text.HALVES[finetune.LABELLED], "libs")
    words = [tuple(f"w{word}" for word in row) for row in torch.randint(300, (2250, 12)).tolist()]
    found = list(zip(sections * 250, words, strict=True))
    monkeypatch.setattr(finetune.text, "descriptions", lambda: found)
    monkeypatch.setattr(finetune, "letters", lambda n, among, seed: (torch.rand(n, 3, 96, 96), torch.arange(n) % 26))
    for name in ("N_TRAIN", "N_BEFORE", "EPOCHS_BEFORE"):  # which `--quick` changes
        monkeypatch.setattr(finetune, name, dict(getattr(finetune, name)))
    return [words for section, words in found if section == "libs"]


def test_a_quick_run_trains_what_it_says_and_is_resumed(finetune, made, tmp_path, monkeypatch):
    texts, known = finetune.words_before()
    assert texts == made  # none of those that are labelled
    tokens = finetune.tokens([("w1", "w2", "unheard")])
    assert tokens[0, :, :5].tolist() == [[len(known) + 2, known["w1"], known["w2"], 1, 0], [1, 1, 1, 1, 0]]

    photographs = {name: np.random.default_rng(0).bytes(200 * 32 * 32 * 3) for name in ("train", "test")}
    images = {name: np.frombuffer(value, np.uint8).reshape(200, 32, 32, 3) for name, value in photographs.items()}
    np.savez(tmp_path / "cifar10n.npz", worst=np.arange(200) % 10, test_labels=np.arange(200) % 10, **images)
    options = ["--quick", "--results", str(tmp_path), "--folder", str(tmp_path)]
    table, file = finetune.main(options), tmp_path / "finetune-quick.json"
    content = json.loads(file.read_text())
    n_absent = importlib.util.find_spec("torchvision") is None  # for one kind
    assert len(content["rows"]) == len(table) == len(finetune.RATES) - n_absent
    for row in content["rows"]:
        assert len(row["part"]["val_loss"]) == 2
        assert row["kept"]["test_error"] == row["all"]["averaged_test_error"][row["kept"]["epoch"]]
        assert row["errors"]["last"] == row["all"]["test_error"][1]

    monkeypatch.setattr(finetune, "run", pytest.fail)  # nothing is trained again
    finetune.main(options)
    assert json.loads(file.read_text()) == content
