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
    rng = np.random.default_rng(0)
    words = [tuple(f"w{word}" for word in rng.integers(30, size=12)) for _ in range(2000)]
    for name, value in {
        "N_TEST": 50,
        "read": lambda name: (words, torch.arange(2000) % 4),
        "known_vectors": lambda: {"w1": np.full(100, 7.0, np.float32)},
        "pretrain": lambda net, tokens, labels, n_epochs, generator: None,
    }.items():
        monkeypatch.setattr(text, name, value)
    (tokens, labels), (test, clean), net = text.prepare(setting, 1)
    assert tokens.shape == (len(labels), text.LENGTH) == (text.KINDS[setting].n_texts, text.LENGTH)
    assert len(test) == len(clean) == 50
    assert net.eval()(tokens[:3]).shape == (3, 4)
    if setting in ("mean", "gru", "vectors"):  # padding says nothing
        padded = torch.cat((tokens[:3, :12], tokens[:3, :12] * 0), dim=1)
        torch.testing.assert_close(net(padded), net(tokens[:3]))
    assert torch.equal(text.prepare(setting, 1)[0][0], tokens)
    if setting == "vectors":
        assert int((net[0].embedding.weight == 7).all(dim=1).sum()) == 1


def test_tables_are_what_their_readme_says(tables):
    said = {}
    for line in (tables.FOLDER / "data" / "README.md").read_text().splitlines():
        names, counts, *sizes = [cell.strip() for cell in line.split("|")[1:5]] or ["", ""]
        if len(sizes) == 2 and sizes[0].isdecimal():
            pairs = zip(names.split(","), counts.split(","), strict=True)
            said |= {name.strip(): (int(samples), *map(int, sizes)) for name, samples in pairs}
    found = {}
    for name in (*tables.TABLES, *tables.UNSEEN):
        features, labels = tables.read_table(name)
        assert features.isfinite().all()
        found[name] = (*features.shape, len(labels.unique()))
        assert labels.max() + 1 == found[name][-1]
    assert found == said
    assert not set(tables.TABLES) & set(tables.UNSEEN)


@pytest.mark.parametrize(
    ("kind", "share"), [("none", 0), ("uniform-0.2", 2 / 15), ("pairs-0.4", 0.4), ("hard-0.2", 0.2)]
)
@pytest.mark.parametrize("n_classes", [3, 4])
def test_so_many_labels_change_and_pairs_are_classes_with_near_means(noise, kind, share, n_classes):
    generator = torch.Generator().manual_seed(0)
    before = torch.randint(n_classes, (2000,), generator=generator)
    centres = torch.tensor([[0.0, 0.0], [2.0, 0.0], [9.0, 0.0], [9.0, 1.0]])
    features = centres[before] + torch.randn(2000, 2, generator=generator)
    given = before.clone(), features, n_classes, kind
    after, again = (noise.corrupt(*given, torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(after, again)
    assert torch.equal(before, given[0])
    if n_classes == 3:
        assert float((before != after).double().mean()) == pytest.approx(share, abs=0.03)
    elif kind == "pairs-0.4":
        for own, other in ((0, 1), (1, 0), (2, 3), (3, 2)):
            assert set(after[before == own].tolist()) == {own, other}
