"""Data of the benchmarks: images, texts, tables, and wrong labels as people make them."""

import numpy as np
import pytest
import torch
from problems import same


def test_kinds_are_apart_and_what_they_say(images):
    assert not set(images.TUNING) & set(images.UNSEEN)
    (inputs, labels), (test, clean), net = images.prepare("digits_augmented", 1)
    assert (inputs.shape, len(labels)) == ((800, 1, 8, 8), 800)
    assert len(test) == len(clean) == 997
    assert net(inputs[:3]).shape == (3, 10)
    (inputs_again, _), _, net_again = images.prepare("digits_augmented", 1)
    assert torch.equal(inputs_again, inputs)
    assert same(dict(net_again.named_parameters()), dict(net.named_parameters()))


@pytest.mark.parametrize("setting", ["mean", "conv", "vectors", "gru", "tuned"])
def test_a_case_is_what_it_says(text, monkeypatch, setting):
    monkeypatch.setattr(text, "N_TEST", 50)
    rng = np.random.default_rng(0)
    words = [tuple(f"w{word}" for word in rng.integers(30, size=12)) for _ in range(2000)]
    monkeypatch.setattr(text, "read", lambda name: (words, torch.arange(2000) % 4))
    monkeypatch.setattr(text, "known_vectors", lambda: {"w1": np.full(100, 7.0, np.float32)})
    monkeypatch.setattr(text, "pretrain", lambda net, tokens, labels, n_epochs, generator: None)
    (tokens, labels), (test, clean), net = text.prepare(setting, 1)
    assert tokens.shape == (len(labels), text.LENGTH) == (text.KINDS[setting].n_texts, text.LENGTH)
    assert len(test) == len(clean) == 50
    assert net.eval()(tokens[:3]).shape == (3, 4)
    padded = torch.cat((tokens[:3, :12], tokens[:3, :12] * 0), dim=1)
    if setting in ("mean", "gru", "vectors"):  # padding says nothing
        torch.testing.assert_close(net(padded), net(tokens[:3]))
    assert torch.equal(text.prepare(setting, 1)[0][0], tokens)
    if setting == "vectors":
        assert int((net[0].embedding.weight == 7).all(dim=1).sum()) == 1


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


def samples(n_classes=3):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(n_classes, (2000,), generator=generator)
    centres = torch.tensor([[0.0, 0.0], [2.0, 0.0], [9.0, 0.0], [9.0, 1.0]])
    return centres[labels] + torch.randn(2000, 2, generator=generator), labels


def corrupted(noise, kind, n_classes=3):
    features, labels = samples(n_classes)
    return features, labels, noise.corrupt(labels, features, n_classes, kind, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("kind", "share"), [("none", 0), ("uniform-0.2", 2 / 15), ("pairs-0.4", 0.4), ("hard-0.2", 0.2)]
)
def test_so_many_labels_change(noise, kind, share):
    _, before, after = corrupted(noise, kind)
    assert float((before != after).double().mean()) == pytest.approx(share, abs=0.03)
    assert torch.equal(after, corrupted(noise, kind)[2])
    assert torch.equal(before, samples()[1])


def test_pairs_are_classes_with_near_means(noise):
    _, before, after = corrupted(noise, "pairs-0.2", n_classes=4)
    for own, other in ((0, 1), (1, 0), (2, 3), (3, 2)):
        assert set(after[before == own].tolist()) == {own, other}
