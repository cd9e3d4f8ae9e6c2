"""A framework that is not installed."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "package", "command"),
    [
        ("transformers", "transformers", "pip install transformers accelerate"),
        ("skorch", "skorch", "pip install skorch"),
        ("optuna", "optuna", "pip install optuna"),
        ("ray", "ray", r'pip install "ray\[tune\]"'),
    ],
)
def test_the_error_names_what_to_install(monkeypatch, module, package, command):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"bu_torch.integrations.{module}", raising=False)
    with pytest.raises(ImportError, match=rf'{module}` needs `{command}`, or .*"bu-torch\[integrations\]"'):
        importlib.import_module(f"bu_torch.integrations.{module}")
