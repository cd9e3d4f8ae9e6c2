import pytest
import torch

from bu_torch.functional import label_votes


def clusters(n_samples, size, generator):
    others = torch.rand(n_samples, n_samples, generator=generator).fill_diagonal_(-1).argsort(dim=1)
    return others[:, :size]


def by_hand(labels, neighbors, decay, n_classes, leave_one_out):
    votes = []
    for row in neighbors.tolist():
        members = row[1:] if leave_one_out else row
        share = [0.0] * n_classes
        for rank, member in enumerate(members, start=1):
            share[labels[member]] += rank**-decay
        votes.append([value / sum(share) for value in share])
    return torch.tensor(votes)


class TestLabelVotes:
    @pytest.mark.parametrize("decay", [0.0, 1.0, 2.5])
    @pytest.mark.parametrize("leave_one_out", [False, True])
    def test_agrees_with_the_definition(self, device, decay, leave_one_out):
        generator = torch.Generator().manual_seed(1)
        labels = torch.randint(0, 4, (30,), generator=generator)
        neighbors = clusters(30, 7, generator)
        found = label_votes(labels.to(device), neighbors.to(device), decay, 5, leave_one_out=leave_one_out)
        assert found.dtype == torch.float32
        assert found.device.type == device.type
        torch.testing.assert_close(found.cpu(), by_hand(labels.tolist(), neighbors, decay, 5, leave_one_out))

    def test_renaming_the_classes_renames_the_columns(self):
        generator = torch.Generator().manual_seed(2)
        labels, neighbors = torch.randint(0, 3, (20,), generator=generator), clusters(20, 5, generator)
        names = torch.tensor([2, 0, 1])
        torch.testing.assert_close(
            label_votes(names[labels], neighbors, 1.0, 3)[:, names], label_votes(labels, neighbors, 1.0, 3)
        )

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"labels": torch.tensor([0.0, 1.0])}, TypeError, "`labels` must have an integer dtype"),
            ({"labels": torch.tensor([0, -1])}, ValueError, r"`labels` must hold classes in \[0, 2\)"),
            ({"labels": torch.tensor([0, 2])}, ValueError, r"`labels` must hold classes in \[0, 2\)"),
            ({"neighbors": torch.tensor([[0], [1]])}, ValueError, "M >= 2"),
            ({"neighbors": torch.tensor([[0, 1]])}, ValueError, r"`neighbors` must have shape \(2, M\)"),
            ({"neighbors": torch.tensor([[0, 2], [1, 0]])}, ValueError, "`neighbors` must hold rows of `labels`"),
            ({"decay": -1.0}, ValueError, "`decay` must be >= 0, got -1.0"),
            ({"decay": float("nan")}, ValueError, "`decay` must be >= 0, got nan"),
        ],
    )
    def test_bad_arguments_are_named(self, change, error, message):
        arguments = {
            "labels": torch.tensor([0, 1]),
            "neighbors": torch.tensor([[0, 1], [1, 0]]),
            "decay": 1.0,
            "n_classes": 2,
        }
        with pytest.raises(error, match=message):
            label_votes(**{**arguments, **change})
