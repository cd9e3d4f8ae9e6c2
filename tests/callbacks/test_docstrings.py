"""The examples in the docstrings of the callbacks run, as doctest runs those of the package."""

import doctest

import pytest

import bu_torch


@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
def test_the_example_of_the_callback_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = doctest.DocTestFinder(recurse=False).find(bu_torch.BoundaryUncertaintyStopping)
    assert len(example.examples) > 5
    assert doctest.DocTestRunner().run(example) == (0, len(example.examples))
    assert list(tmp_path.iterdir()) == []
