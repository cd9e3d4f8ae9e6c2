"""Files of `Signals`: read again to the bit, or refused."""

import io
import os
import stat
import tracemalloc
from unittest import mock

import numpy as np
import pytest
import torch
from problems import blobs, weights_at_random

from bu_torch import Signals
from bu_torch.signals.preparation import fit_or_load

X, Y = blobs()
N, M, D = 120, 10, 2
ABSENT = torch.where(Y == 2, 7, Y)  # classes 0, 1 and 7


def bytes_of(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def unfitted(**settings):
    return Signals(**{"n_neighbors": M, "n_draws": D, **settings})


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """What a file holds, fingerprint and all."""
    path = tmp_path_factory.mktemp("cache") / "cache.npz"
    unfitted().fit(X, Y).save(path)
    with np.load(path) as file:
        return dict(file)


def refuse(path, said):
    signals = unfitted()
    with pytest.raises(ValueError, match=rf"or it is damaged \({said}.*\): remove it, or name another file"):
        signals.load(path, X, Y)
    assert not signals.is_fitted
    assert not hasattr(signals.boundary, "labels")


@pytest.mark.parametrize("name", ["bu_torch_fingerprint", "neighbors", "regression_skill"])
def test_an_array_that_is_missing_is_damage(tmp_path, arrays, name):
    np.savez(tmp_path / "cache.npz", **{other: array for other, array in arrays.items() if other != name})
    refuse(tmp_path / "cache.npz", "KeyError")


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99, "text", "array"])
def test_a_file_that_is_cut_off_or_none_of_ours_is_damaged(tmp_path, arrays, share):
    path = tmp_path / "cache.npz"
    with pytest.raises(FileNotFoundError):
        unfitted().load(path, X, Y)
    np.savez(path, **arrays)
    others = {"text": b"text", "array": bytes_of(np.arange(3))}
    path.write_bytes(others[share] if share in others else path.read_bytes()[: int(share * path.stat().st_size)])
    refuse(path, "BadZipFile|ValueError|EOFError|TypeError|AttributeError")


@pytest.mark.parametrize("name", ["bu_torch_fingerprint", "left_out_distances"])
def test_what_inflates_to_much_more_takes_no_memory(tmp_path, arrays, name):
    n_bytes = 2**26
    np.savez_compressed(tmp_path / "cache.npz", **arrays | {name: np.zeros(n_bytes, dtype=np.uint8)})
    tracemalloc.start()
    try:
        refuse(tmp_path / "cache.npz", "ValueError")
        assert tracemalloc.get_traced_memory()[1] < n_bytes / 8
    finally:
        tracemalloc.stop()


def test_objects_are_not_unpickled(tmp_path, arrays):
    np.savez(tmp_path / "cache.npz", **arrays | {"votes": arrays["votes"].astype(object)})
    refuse(tmp_path / "cache.npz", "ValueError")


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
    for name in ("class_distances", "votes", "probabilities"):
        assert torch.equal(getattr(again, name), getattr(signals, name))
    of_boundary = ("perturbed_inputs", "labels", "neighbors", "nearest_distance", "probabilities", "votes")
    for name in (*of_boundary, "mean_", "scale_"):
        found, expected = getattr(again.boundary, name), getattr(signals.boundary, name)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    assert again.boundary.space_name_ == signals.boundary.space_name_
    assert (again.vote_skill, again.regression_skill) == (signals.vote_skill, signals.regression_skill)


OF = {"features": X, "labels": Y, "weights": (WEIGHTS := weights_at_random())}
WRITTEN_BY = {"feature_extractor": lambda x: x[:, :2], "perturbation": moved, "class_weight": "balanced"}
OTHERS = {
    "features": {"features": X + 1e-6},
    "labels": {"labels": Y.flip(0)},
    "order": {name: part.flip(0) for name, part in OF.items()},
    "weights": {"weights": WEIGHTS.flip(0)},
    "no weights": {"weights": None},
    "a seed": {"seed": 4},
    "draws": {"n_draws": D + 1},
    "neighbours": {"n_neighbors": M + 1},
    "an extractor": {"feature_extractor": lambda x: x[:, 2:]},
    "a perturbation": {"perturbation": lambda x, d, g: x},
    "classes that count alike": {"class_weight": None},
    "weights of classes": {"class_weight": {0: 2.0}},
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("weighted") / "cache.npz"
    signals = unfitted(**WRITTEN_BY).fit(*OF.values())
    signals.save(path)
    return path, signals


@pytest.mark.parametrize("metric", ["accuracy", "auroc"])
def test_of_weighted_samples_it_is_read_again(tmp_path, metric):
    signals, again = (unfitted(**WRITTEN_BY, metric=metric) for _ in range(2))
    signals.fit(*OF.values()).save(tmp_path / "cache.npz")
    again.load(tmp_path / "cache.npz", *OF.values())
    logits = torch.randn(D * N, 3)
    assert signals.measure(logits).values == again.measure(logits).values
    assert torch.equal(signals.boundary.weights, again.boundary.weights)
    found = [signals.fingerprint_of(X, Y, weights) for weights in (WEIGHTS, WEIGHTS * 2.0**-7, None)]
    assert [one == signals.fingerprint for one in found] == [True, True, False]


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_of_other_samples_or_settings_it_is_refused(written, other):
    given, settings = ({name: other[name] for name in other if (name in OF) == of_samples} for of_samples in (1, 0))
    with pytest.raises(ValueError, match="was made of other samples or settings"):
        unfitted(**WRITTEN_BY | settings).load(written[0], *(OF | given).values())


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    def torn(file, **arrays):
        file.write(b"half")
        raise OSError("disk full")

    (tmp_path / "cache.npz").write_bytes(b"old")
    signals = unfitted().fit(X, Y)
    monkeypatch.setattr(np, "savez", torn)
    with pytest.raises(OSError, match="disk full"):
        signals.save(tmp_path / "cache.npz")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"]


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
    with pytest.warns(UserWarning, match=f"^The cache {file} cannot be read: Permission denied. Its contents are"):
        assert fit_or_load(Signals(5, 1), *blobs(), file) == (None, None)
    assert not file.exists()
