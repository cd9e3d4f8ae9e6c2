"""The benchmark of transformers: its data, its networks, its table, and one quick run that is resumed."""

import json

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")


@pytest.fixture(autouse=True)
def made(finetune, monkeypatch):
    """Random words in place of descriptions, and plain squares in place of letters."""
    rng = np.random.default_rng(0)
    sections = (*finetune.text.HALVES[finetune.LABELLED], "libs")
    texts = [tuple(f"w{word}" for word in row) for row in rng.integers(300, size=(2000, 12))]
    found = [(sections[row % len(sections)], words) for row, words in enumerate(texts)]
    monkeypatch.setattr(finetune.text, "descriptions", lambda: found)

    def squares(n_images, among, seed):
        colours = torch.rand(n_images, 3, 1, 1, generator=torch.Generator().manual_seed(seed))
        return colours.expand(-1, -1, finetune.SIDE, finetune.SIDE).clone(), torch.arange(n_images) % len(among)

    monkeypatch.setattr(finetune, "letters", squares)
    for name in ("N_TRAIN", "N_BEFORE", "EPOCHS_BEFORE"):  # which `--quick` changes
        monkeypatch.setattr(finetune, name, dict(getattr(finetune, name)))
    return [words for section, words in found if section == "libs"]


def test_a_quick_run_trains_what_it_says_and_is_resumed(finetune, made, tmp_path, monkeypatch):
    texts, known = finetune.words_before()
    assert texts == made  # none of those that are labelled
    tokens = finetune.tokens([("w1", "w2", "unheard")])
    assert tokens[0, :, :5].tolist() == [[len(known) + 2, known["w1"], known["w2"], 1, 0], [1, 1, 1, 1, 0]]

    table = finetune.main(["--quick", "--results", str(tmp_path)])
    content = json.loads((tmp_path / "finetune-quick.json").read_text())
    assert len(content["rows"]) == len(table) == len(finetune.RATES)
    for row in content["rows"]:
        whole, kept = row["all"], row["kept"]
        assert len(whole["test_error"]) == len(row["part"]["val_loss"]) == 2
        assert kept["test_error"] == whole["averaged_test_error"][kept["epoch"]]
        assert whole["test_error"][0] == whole["averaged_test_error"][0]
        found = table["test error"].loc[(row["case"]["setting"], row["case"]["noise"]), "last"]
        assert found == row["errors"]["last"] == whole["test_error"][1]

    monkeypatch.setattr(finetune, "run", pytest.fail)  # nothing is trained again
    finetune.main(["--quick", "--results", str(tmp_path)])
    assert json.loads((tmp_path / "finetune-quick.json").read_text()) == content


@pytest.mark.parametrize(
    ("setting", "share"), [("bert", (1.0, 1.0)), ("bert_lora", (0.0, 0.3)), ("resnet", (1.0, 1.0))]
)
def test_networks_begin_as_they_were_pretrained(finetune, setting, share):
    case = finetune.Case(finetune.DATA[setting], 0.0, 0, setting, 2)
    before = transformers.BertForMaskedLM(finetune.bert()).bert
    if case.table == "letters":
        before = transformers.ResNetForImageClassification(finetune.resnet(len(finetune.OLD))).resnet
    net = finetune.network(case, before.state_dict())
    values = {name.replace("base_layer.", ""): value for name, value in net.state_dict().items()}
    for name, value in before.state_dict().items():
        assert [torch.equal(one, value) for key, one in values.items() if key.endswith(f".{name}")] == [True], name
    trained, size = (sum(one.numel() for one in net.parameters() if one.requires_grad in are) for are in ({1}, {0, 1}))
    assert (trained < 0.3 * size) if setting == "bert_lora" else (trained == size)
    (inputs, labels), test = finetune.prepare(case)
    assert net(inputs[:2]).shape == (2, len(test[1].unique()))
    noisy = finetune.prepare(finetune.Case(case.table, 0.2, 0, setting, 2))[0]
    assert torch.equal(noisy[0], inputs)
    assert 0.1 < float((noisy[1] != labels).float().mean()) < 0.25


def test_ratios_are_of_means_over_seeds(finetune):
    def record(seed, shift):
        return {
            "case": {"table": "letters", "noise": 0.0, "seed": seed, "setting": "resnet", "epochs": 3},
            "all": {"test_error": [0.5, 0.25, 0.5], "averaged_test_error": [0.5, 0.375, 0.25 + 4 * shift]},
            "part": {"test_error": [0.5, 0.5, 0.75], "val_accuracy": [0.5, 0.75, 0.75], "val_loss": [3, 2, 1]},
            "kept": {"test_error": 0.25 + shift},
        }

    (found,) = finetune.table([record(0, 0.125), record(1, 0.0)]).to_dict("index").values()
    assert (found["test error", "hold-out accuracy"], found["excess", "hold-out loss"]) == (0.5, 0.5)
    assert [found["default's excess", f"/ {name}"] for name in finetune.REFERENCES] == [0.25, 0.125, 0.25]
