import pytest

from bu_torch.callbacks import keeper


@pytest.fixture
def new_process(monkeypatch):
    """From now on, files that this process has written count as another's."""
    return lambda: monkeypatch.setattr(keeper, "_OWN_FILES", {})
