"""Files of `Signals` with the right fingerprint and wrong contents."""

import io
import os
import stat
import tracemalloc
import zipfile
from unittest import mock

import numpy as np
import pytest
import torch
from problems import blobs

from bu_torch import Signals
from bu_torch.signals.cache import fit_or_load

X, Y = blobs()
N, M, D, J = 120, 10, 2, 3
ABSENT = torch.where(Y == 2, 7, Y)  # classes 0, 1 and 7


def unfitted(**settings):
    return Signals(**{"n_neighbors": M, "n_draws": D, **settings})


def contents(folder, labels=Y):
    path = folder / "cache.npz"
    unfitted().fit(X, labels).save(path)
    with np.load(path) as file:
        return dict(file)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """What a file holds, fingerprint and all."""
    return contents(tmp_path_factory.mktemp("cache"))


def header(shape, dtype="<f4"):
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": dtype, "fortran_order": False, "shape": shape})
    return content.getvalue()


def members(arrays, **others):
    """Bytes of each member, some replaced by bytes."""
    found = {}
    for name, array in arrays.items():
        content = io.BytesIO()
        np.save(content, array)
        found[f"{name}.npy"] = content.getvalue()
    return found | {f"{name}.npy": content for name, content in others.items()}


def pack(path, found, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in found.items():
            file.writestr(name, content)


def refuse(path, said, labels=Y):
    signals = unfitted()
    with pytest.raises(ValueError, match=rf"or it is damaged \({said}.*\): remove it, or name another file"):
        signals.load(path, X, labels)
    assert not signals.is_fitted
    assert not hasattr(signals.boundary, "labels")


def at(place, value):
    def change(array):
        array = array.copy()
        array[place] = value
        return array

    return change


CLUSTERS = r"must hold different rows in \[0, 120\) for each sample, its own first, got 1 of 120 wrong"
PAIRS = "must hold two classes of the labels for each sample, the lower first, got 1 of 120 wrong"
DISTANCES = "must hold distances >= 0, got 1 of 240 wrong"
SHARES = "must hold shares >= 0 with sum 1 in each row, got 1 of {} wrong"
NEAREST = "must hold finite distances >= 0, got 1 of 120 wrong"
WRONG = {
    "a neighbour below 0": ("neighbors", at((5, 3), -1), CLUSTERS),
    "a neighbour beyond the samples": ("neighbors", at((5, 3), N), CLUSTERS),
    "a cluster of another sample": ("neighbors", at(5, np.r_[6, 5, 7:15]), CLUSTERS),
    "a neighbour twice": ("neighbors", lambda array: at((5, 3), array[5, 8])(array), CLUSTERS),
    "the sample itself twice": ("neighbors", at((5, 3), 5), CLUSTERS),
    "another label": ("labels", at(7, 2), "must hold the labels of the samples, got 1 of 120 wrong"),
    "a pair of equal classes": ("bayes_pairs", at(4, 1), PAIRS),
    "a descending pair": ("bayes_pairs", at(4, [2, 0]), PAIRS),
    "a class beyond all": ("bayes_pairs", at((4, 1), J), PAIRS),
    "a space of another name": ("space", lambda array: np.array("nowhere"), "must hold one of inputs, .*, got 1 of 1"),
    "an infinite nearest distance": ("nearest_distance", at(1, np.inf), NEAREST),
    "a distance that is NaN": ("left_out_distances", at((9, 0), np.nan), DISTANCES),
    "a vote that is NaN": ("votes", at((3, 0), np.nan), SHARES.format(120)),
    "votes that do not sum to 1": ("votes", at(3, [0.5, 0.25, 0.0]), SHARES.format(120)),
    "a probability that is NaN": ("probabilities", at((3, 0), np.nan), SHARES.format(240)),
    "a probability above 1": ("probabilities", at(3, [1.5, -0.5, 0.0]), SHARES.format(240)),
    "a skill that is NaN": ("vote_skill", lambda array: np.array(np.nan), "must hold a finite number"),
    "a skill above 1": ("regression_skill", lambda array: np.array(1.5), "must .* of at most 1"),
    "of floats": ("neighbors", lambda array: array.astype(float), r"must be int64 of shape \(120, 10\), got float64"),
    "of bytes in the other order": ("labels", lambda array: array.astype(">i8"), "must be int64 .*, got >i8"),
    "of the other precision": ("votes", lambda array: array.astype(float), "must be float32 .*, got float64"),
    "of words": ("vote_skill", lambda array: np.array("good"), "must be float64 .*, got <U4"),
    "of objects": ("bayes_pairs", lambda array: array.astype(object), "must be int64 .*, got object"),
    "a skill for each sample": ("vote_skill", lambda array: np.zeros(N), r"must .* got .* \(120,\)"),
    "a class too few": ("votes", lambda array: array[:, 1:], r"must .* got float32 of shape \(120, 2\)"),
    "a space of many letters": ("space", lambda array: np.array("x" * 9), "must be <U5 or <U6 or <U7 .* got <U9"),
    "probabilities of one draw": ("probabilities", lambda array: array[:N], r".* got .* \(120, 3\)"),
    "distances to more classes": ("left_out_distances", lambda array: np.c_[array, array], r".* got .* \(240, 6\)"),
}


@pytest.mark.parametrize(("name", "change", "said"), WRONG.values(), ids=WRONG)
def test_values_that_cannot_be_and_arrays_of_another_kind_are_damage(tmp_path, arrays, name, change, said):
    np.savez(tmp_path / "cache.npz", **arrays | {name: change(arrays[name])})
    refuse(tmp_path / "cache.npz", f"`{name}` {said}")


def test_a_class_without_samples_is_in_no_pair(tmp_path):
    arrays, path = contents(tmp_path, ABSENT), tmp_path / "changed.npz"
    np.savez(path, **arrays | {"bayes_pairs": at(4, [1, 3])(arrays["bayes_pairs"])})
    refuse(path, f"`bayes_pairs` {PAIRS}", ABSENT)


@pytest.mark.parametrize("name", ["bu_torch_fingerprint", "neighbors", "regression_skill"])
def test_an_array_that_is_missing_is_damage(tmp_path, arrays, name):
    np.savez(tmp_path / "cache.npz", **{other: array for other, array in arrays.items() if other != name})
    refuse(tmp_path / "cache.npz", f"`{name}` is missing")


def test_an_array_too_many_is_not_looked_at(tmp_path, arrays):
    pack(tmp_path / "cache.npz", members(arrays, other=b"no array"))
    assert unfitted().load(tmp_path / "cache.npz", X, Y).is_fitted


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (header((10**13,)), r"`votes` must be float32 of shape \(120, 3\), got float32 of shape \(10000000000000,\)"),
        (header((10**13, 3)) + bytes(1440), r"`votes` must be float32 of shape \(120, 3\), got float32 of shape"),
        (header((N, J)) + bytes(1439), "`votes` must hold 1440 bytes, got 1439"),
        (header((N, J)) + bytes(1441), "`votes` must hold 1440 bytes, got 1441"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", "ValueError"),
        (b"\x93NUMPY\x09\x09" + header((N, J))[8:] + bytes(1440), ""),
        (b"", "ValueError"),
    ],
    ids=["a shape alone", "a shape too large", "too short", "too long", "a long header", "another format", "empty"],
)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_header_that_lies_is_damage(tmp_path, arrays, content, said, compression):
    pack(tmp_path / "cache.npz", members(arrays, votes=content), compression)
    refuse(tmp_path / "cache.npz", said)


@pytest.mark.parametrize("name", ["bu_torch_fingerprint", "left_out_distances"])
def test_what_inflates_to_much_more_takes_no_memory(tmp_path, arrays, name):
    n_bytes = 2**26
    found = members(arrays, **{name: header((n_bytes // 4,)) + bytes(n_bytes)})
    pack(tmp_path / "cache.npz", found, zipfile.ZIP_DEFLATED)
    tracemalloc.start()
    try:
        refuse(tmp_path / "cache.npz", f"`{name}` must be ")
        assert tracemalloc.get_traced_memory()[1] < n_bytes / 8
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99, "text"])
def test_a_file_that_is_cut_off_or_none_of_ours_is_damaged(tmp_path, arrays, share):
    path = tmp_path / "cache.npz"
    with pytest.raises(FileNotFoundError):
        unfitted().load(path, X, Y)
    np.savez(path, **arrays)
    path.write_bytes(b"text" if share == "text" else path.read_bytes()[: int(share * path.stat().st_size)])
    refuse(path, "BadZipFile|ValueError|EOFError")


@pytest.mark.parametrize("name", ["nearest_distance", "vote_skill"])
def test_a_bit_that_flips_on_the_disk_is_damage(tmp_path, arrays, name):
    path = tmp_path / "cache.npz"
    np.savez(path, **arrays)
    content = bytearray(path.read_bytes())
    content[content.index(arrays[name].tobytes("A"))] ^= 1  # of the last bits of a number: it stays a likely one
    path.write_bytes(content)
    refuse(path, "BadZipFile")


def test_a_machine_without_the_memory_does_not_say_that_the_file_is_damaged(tmp_path, arrays, monkeypatch):
    np.savez(tmp_path / "cache.npz", **arrays)
    monkeypatch.setattr(np.lib.format, "read_array", mock.Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        unfitted().load(tmp_path / "cache.npz", X, Y)


def moved(inputs, distance, generator):
    return inputs.flip(0)


def drawn(inputs, distance, generator):
    return inputs + distance.view(-1, 1) * torch.randn(inputs.shape, generator=generator)


def drawn_elsewhere(inputs, distance, generator):
    return drawn(inputs, distance, None)


KINDS = {
    "float64": (X.double(), Y, {}),
    "integers": ((X * 100).long(), Y, {}),
    "bytes that are moved as such": ((X * 20 + 100).clamp(0, 255).byte(), Y, {"perturbation": moved}),
    "images": (X.view(N, 1, 2, 2), Y, {}),
    "classes without samples": (X, ABSENT, {}),
    "a class of one sample": (X, torch.where(torch.arange(N) == 5, 2, Y % 2), {}),
    "extracted in the other precision": (X, Y, {"feature_extractor": torch.Tensor.double}),
    "images that are moved at random, in a space that is chosen": (X.view(N, 1, 2, 2), Y, {"perturbation": "random"}),
    "tokens": ((X * 5 + 50).long().clamp(min=0), Y, {"perturbation": "tokens"}),
    "one sample many times": (X[:1].expand(N, -1), Y, {}),
    "as many neighbours as samples": (X, Y, {"n_neighbors": N}),
}


@pytest.mark.filterwarnings("ignore:.*have an exact copy with the same label", "ignore:.*a sample's label no better")
@pytest.mark.parametrize(("features", "labels", "settings"), KINDS.values(), ids=KINDS)
def test_whatever_is_fitted_is_read_again_to_the_bit(tmp_path, features, labels, settings):
    path = tmp_path / "deep" / "cache.npz"
    signals = unfitted(**settings).fit(features, labels)
    signals.save(path)
    assert list(path.parent.iterdir()) == [path]
    again = unfitted(**settings).load(path, features, labels)
    for name in ("class_distances", "left_out_distances", "votes", "probabilities"):
        assert torch.equal(getattr(again, name), getattr(signals, name))
    for name in ("perturbed_inputs", "labels", "neighbors", "nearest_distance", "bayes_pairs", "mean_", "scale_"):
        found, expected = getattr(again.boundary, name), getattr(signals.boundary, name)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    assert again.boundary.space_name_ == signals.boundary.space_name_
    assert (again.vote_skill, again.regression_skill) == (signals.vote_skill, signals.regression_skill)


def test_no_input_is_in_a_file(tmp_path):
    """Neither as it is nor moved: of each, no two numbers that follow each other are found."""
    path = tmp_path / "cache.npz"
    signals = unfitted().fit(X, Y)
    signals.save(path)
    content = path.read_bytes()
    assert signals.votes.numpy().tobytes() in content
    for rows in (X, signals.perturbed_inputs, signals.boundary.standardize(X)):
        assert not [row for row in rows.numpy() if row[:2].tobytes() in content or row[2:].tobytes() in content]


def test_a_callable_that_does_not_draw_from_its_generator_is_refused(tmp_path):
    unfitted(perturbation=drawn_elsewhere).fit(X, Y).save(tmp_path / "cache.npz")
    with pytest.raises(ValueError, match="was made of other samples or settings"):
        unfitted(perturbation=drawn_elsewhere).load(tmp_path / "cache.npz", X, Y)


@pytest.mark.skipif(os.name == "nt", reason="modes are those of POSIX")
def test_no_other_user_may_read_a_file_not_even_while_it_is_written(tmp_path, monkeypatch):
    modes, savez = [], np.savez

    def save(file, **arrays):
        savez(file, **arrays)
        modes.append(stat.S_IMODE(os.fstat(file.fileno()).st_mode))

    monkeypatch.setattr(np, "savez", save)
    before = os.umask(0)
    try:
        unfitted().fit(X, Y).save(tmp_path / "cache.npz")
    finally:
        os.umask(before)
    assert [*modes, stat.S_IMODE((tmp_path / "cache.npz").stat().st_mode)] == [0o600, 0o600]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "cache.npz")
    refuse(tmp_path / "cache.npz", "OSError")


def test_a_cache_that_may_not_be_read_is_told_of_and_computed_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(Signals, "load", mock.Mock(side_effect=PermissionError(13, "Permission denied")))
    file = tmp_path / "own.npz"
    cached = fit_or_load(Signals(5, 1), *blobs(), file)
    assert cached.refusal == f"The cache {file} cannot be read: Permission denied. Its contents are computed anew."
    assert not file.exists()
