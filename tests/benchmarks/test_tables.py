"""Tables, shipped and of one's own."""

import pandas as pd
import pytest
import torch


def test_tables_are_what_their_readme_says(tables):
    rows = [line.split("|")[1:5] for line in (tables.FOLDER / "data" / "README.md").read_text().splitlines()]
    said = {
        name.strip(): (int(samples), int(features), int(classes))
        for names, counts, features, classes in (row for row in rows if row and row[1].strip(" -,0123456789") == "")
        for name, samples in zip(names.split(","), counts.split(","), strict=True)
        if samples.strip("- ")
    }
    found = {}
    for name in (*tables.TABLES, *tables.UNSEEN):
        features, labels = tables.read_table(name)
        assert sorted(set(labels.tolist())) == list(range(int(labels.max()) + 1))
        assert features.isfinite().all()
        found[name] = (*features.shape, int(labels.max()) + 1)
    assert found == said
    assert not set(tables.TABLES) & set(tables.UNSEEN)


def test_label_noise_redraws_training_labels_alone(tables):
    clean, clean_test, _ = tables.load("banknote", 0)
    noisy, noisy_test, _ = tables.load("banknote", 0, 0.4)
    assert torch.equal(clean[0], noisy[0])
    assert torch.equal(clean_test[1], noisy_test[1])
    assert float((clean[1] != noisy[1]).float().mean()) == pytest.approx(0.2, abs=0.05)  # half are redrawn as they were


def test_a_file_of_one_s_own_is_a_table(tables, tmp_path):
    file = tmp_path / "own.csv.gz"
    table = pd.DataFrame({"a": [0.5, 1.0, 2.0], "label": ["yes", "no", "yes"], "b": [True, False, True]})
    pd.concat([table] * 40).to_csv(file, index=False)
    features, labels = tables.read_table(str(file))
    assert torch.equal(features[:3], torch.tensor([[0.5, 1.0], [1.0, 0.0], [2.0, 1.0]]))
    assert labels.tolist() == [1, 0, 1] * 40
