"""What all frameworks share that train by the plain loop's stopper."""

import torch
from problems import Augmented, Plain, in_order
from torch import nn
from torch.utils.data import DataLoader

from bu_torch.integrations.loaders import make_stopper
from bu_torch.report import read_record

OPTIONS = {"seed": 0, "n_neighbors": 20, "perturbation": None}


def test_augmented_samples_are_read_again(tmp_path, caplog):
    network = Plain()
    with caplog.at_level("INFO", logger="bu_torch"):
        make_stopper(network, in_order(), OPTIONS).check(network)
        assert "random augmentation" not in caplog.text
        stopper = make_stopper(network, DataLoader(Augmented(), batch_size=30), OPTIONS | {"folder": tmp_path})
        stopper.check(network)
    assert "A sample differs each time it is read (random augmentation)" in caplog.text
    assert read_record(tmp_path).data["perturbation"] == "reading"
    again = make_stopper(network, DataLoader(Augmented(), batch_size=30), OPTIONS)
    again.check(network)
    assert again.history[0] == stopper.history[0]
    resumed = make_stopper(network, DataLoader(Augmented(), batch_size=30), OPTIONS)
    resumed.load_state_dict(stopper.state_dict())
    resumed.check(network)  # without the warning that the samples differ
    assert len(resumed.history) == 2


class DroppedTokens(torch.utils.data.Dataset):
    """Token ids of which some are dropped at random."""

    def __len__(self):
        return 120

    def __getitem__(self, i):
        ids = torch.randint(1, 99, (8,), generator=torch.Generator().manual_seed(i)) + 99 * (i % 3)
        return torch.where(torch.rand(8) < 0.2, 0, ids), i % 3


def test_texts_with_token_dropout_are_read_again(tmp_path):
    network = nn.Sequential(nn.EmbeddingBag(300, 8), nn.Linear(8, 3))  # which takes integers alone
    make_stopper(network, DataLoader(DroppedTokens(), batch_size=30), OPTIONS | {"folder": tmp_path}).check(network)
    assert read_record(tmp_path).data["perturbation"] == "reading"
