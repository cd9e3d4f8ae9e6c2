"""The images of the benchmark, and the networks for them."""

import json
import tarfile

import pytest
import torch
from PIL import Image
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


def test_augmentation_shifts_within_its_reach(images):
    point = torch.zeros(1, 1, 9, 9)
    point[..., 4, 4] = 1
    dataset = images.Augmented(point, torch.zeros(1))
    seen = {tuple(dataset[0][0].nonzero()[0].tolist()) for _ in range(500)}
    assert {row for _, row, _ in seen} == {column for _, _, column in seen} == set(range(1, 8))


@pytest.fixture
def package(tmp_path):
    """Squares of one colour on transparent ground, as the npm package has them; for the last one there is no image."""
    folder, rows = tmp_path / "package", []
    (folder / "img/google/64").mkdir(parents=True)
    for order, unified, category, colour in (
        (3, "1F9D1-200D-1F33E", "People & Body", "red"),
        (2, "1F468-200D-1F33E", "People & Body", "blue"),  # a man where there is a person
        (1, "1F468-200D-1F467", "People & Body", "navy"),  # no other's man
        (4, "1F645-200D-2640-FE0F", "People & Body", "cyan"),
        (5, "1F408", "Animals & Nature", "black"),
        (6, "1F409", "Animals & Nature", "#030303"),  # nearly the one before
        (7, "1F3F3", "Flags", "green"),
        (8, "1F411", "Animals & Nature", None),
    ):
        row = {"unified": unified, "category": category, "sort_order": order, "image": f"{unified.lower()}.png"}
        rows.append({**row, "has_img_google": colour is not None})
        if colour:
            image = Image.new("RGBA", (64, 64))
            image.paste(Image.new("RGB", (32, 64), colour))
            image.save(folder / "img/google/64" / row["image"])
    (folder / "emoji.json").write_text(json.dumps(rows))
    return folder


def test_emoji_are_read_on_white_without_variants(images, package):
    read, labels = images.read_emoji(package)
    assert read.shape == (3, 3, 64, 64)
    assert labels.tolist() == [1, 1, 0]
    assert [image[:, 0, 0].tolist() for image in read] == [[0, 0, pytest.approx(128 / 255)], [1, 0, 0], [0, 0, 0]]
    assert bool((read[..., 32:] == 1).all())
    packed = package.with_suffix(".tgz")
    with tarfile.open(packed, "w:gz") as file:
        file.add(package, "package")
    again, _ = images.read("emoji32", packed)
    torch.testing.assert_close(again, read.unfold(2, 2, 2).unfold(3, 2, 2).mean(dim=(4, 5)))
    with pytest.raises(ValueError, match="needs `--emoji`"):
        images.read("emoji64")


@pytest.mark.parametrize(("size", "sides"), [(8, 2), (28, 7), (32, 4), (64, 4)])
def test_networks_suit_the_size(images, size, sides):
    net = images.network(images.Kind("", 1), torch.Size((3, size, size)), 5)
    assert net[:-4](torch.zeros(1, 3, size, size)).shape[2:] == (sides, sides)
    assert net(torch.zeros(2, 3, size, size)).shape == (2, 5)


def test_kinds_without_their_images_are_left_out(images, capsys):
    assert images.there(["digits", "emoji_64"], None) == ["digits"]
    assert capsys.readouterr().out == "Left out for want of `--emoji`: emoji_64.\n"
    assert images.there(["digits", "emoji_64"], images.IMAGES) == ["digits", "emoji_64"]
