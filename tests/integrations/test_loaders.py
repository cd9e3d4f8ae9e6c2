"""What all frameworks share that train by the plain loop's stopper."""

import pytest
from problems import Augmented, Plain, in_order
from torch.utils.data import DataLoader

from bu_torch.integrations.loaders import make_stopper

OPTIONS = {"seed": 0, "n_neighbors": 20, "perturbation": None}


def test_augmented_samples_are_named(recwarn):
    make_stopper(Plain(), in_order(), OPTIONS)
    assert not recwarn
    with pytest.warns(UserWarning, match=r"\(random augmentation\).* train with Lightning, which reads samples again"):
        make_stopper(Plain(), DataLoader(Augmented(), batch_size=30), OPTIONS)
