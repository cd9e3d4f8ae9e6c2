"""The benchmark of text, on lists of packages and sentences that are made here."""

import numpy as np
import pytest
import torch


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
