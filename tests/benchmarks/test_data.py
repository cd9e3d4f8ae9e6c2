"""Data of the benchmarks: images, texts, tables, and wrong labels as people make them."""

import pytest
import torch


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
