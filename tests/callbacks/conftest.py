import pytest

from bu_torch.callbacks import _companions
from bu_torch.callbacks._own_files import OwnFiles


@pytest.fixture
def new_process(monkeypatch):
    """From now on, files that this process has written count as another's."""
    return lambda: monkeypatch.setattr(_companions, "_OWN_FILES", OwnFiles())
