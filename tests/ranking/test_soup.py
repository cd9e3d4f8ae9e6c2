import problems
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.optim.swa_utils import AveragedModel

from bu_torch import Signals, average_checkpoints, greedy_soup, load_checkpoint, rank_checkpoints

LABELS = torch.arange(400) % 2
NOISE = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
# N(0, I) and N((2, 0), I): the Bayes boundary is x_0 = 1.
GAUSSIANS = NOISE + LABELS.unsqueeze(1) * torch.tensor([2.0, 0.0]), LABELS


def state_of(at):
    """Weights of x_0 - at."""
    return {"weight": torch.tensor([[1.0, 0.0]]), "bias": torch.tensor([-at])}


def save_cuts(folder, *places):
    for epoch, at in enumerate(places):
        torch.save({"state_dict": state_of(at), "epoch": epoch}, folder / f"{at}.ckpt")


def test_an_average_is_the_mean_and_keeps_whole_numbers(tmp_path):
    modules = [nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)) for _ in range(3)]
    for place, module in enumerate(modules):
        for _ in range(place + 1):
            module(torch.randn(10, 3) + place)
        torch.save(module.state_dict(), tmp_path / f"{place}.pt")
    average = average_checkpoints(tmp_path)
    states = [module.state_dict() for module in modules]
    swa = AveragedModel(modules[0], use_buffers=True)
    for module in modules:
        swa.update_parameters(module)
    for name, value in average.items():
        stacked = torch.stack([state[name] for state in states])
        assert value.dtype == stacked.dtype
        if value.is_floating_point():
            torch.testing.assert_close(value, stacked.mean(dim=0))
            torch.testing.assert_close(value, swa.module.state_dict()[name])
        else:
            assert torch.equal(value, states[0][name])


def test_low_precision_is_averaged_in_double_and_expanded_weights_as_others(tmp_path):
    for place in range(7):
        torch.save({"weight": torch.tensor([3.0 + (place == 6)], dtype=torch.bfloat16)}, tmp_path / f"{place}.pt")
    average = average_checkpoints(tmp_path)["weight"]
    assert average.dtype == torch.bfloat16
    assert torch.equal(average, torch.tensor([22 / 7], dtype=torch.bfloat16))
    for place in range(7):
        state = {"weight": torch.full((1, 1), float(place)).expand(1, 2), "bias": torch.zeros(1)}
        torch.save(state, tmp_path / f"{place}.pt")
    assert torch.equal(average_checkpoints(tmp_path)["weight"], torch.full((1, 2), 3.0))
    assert len(greedy_soup(tmp_path, nn.Linear(2, 1), GAUSSIANS).ranking) == 7


def test_files_of_other_shapes_are_not_averaged(tmp_path):
    torch.save(nn.Linear(2, 3).state_dict(), tmp_path / "a.pt")
    torch.save(nn.Linear(2, 4).state_dict(), tmp_path / "b.pt")
    with pytest.raises(ValueError, match=r"bias is \(3,\) in .*a.pt`, \(4,\) in .*b.pt`"):
        average_checkpoints(tmp_path)
    torch.save(nn.Linear(2, 3, bias=False).state_dict(), tmp_path / "b.pt")
    with pytest.raises(ValueError, match=r"bias is .* missing in"):
        average_checkpoints(tmp_path)


@pytest.mark.parametrize("read", [average_checkpoints, rank_checkpoints, greedy_soup])
@pytest.mark.parametrize("stride", [0, 1], ids=["expanded", "overlapping"])
def test_a_tensor_far_larger_than_its_file_takes_no_memory(tmp_path, read, stride):
    n = 10**6 if stride else 10**13
    large = torch.ones(2 * n if stride else 1).as_strided((n, n) if stride else (1, n), (stride, stride))
    torch.save({"weight": large, "bias": large}, tmp_path / "crafted.pt")
    with pytest.raises(ValueError, match=r"crafted\.pt` must hold the values .* got '(weight|bias)' of shape"):
        read(tmp_path, *(() if read is average_checkpoints else (nn.Linear(2, 1), GAUSSIANS)))


@pytest.mark.parametrize("rule", ["expected_accuracy", "boundary_uncertainty"])
def test_what_lies_on_both_sides_of_the_bayes_boundary_is_averaged(tmp_path, rule):
    save_cuts(tmp_path, 0.3, 1.8, 5.0)
    module = nn.Linear(2, 1)
    before = module.weight.clone()
    soup = greedy_soup(tmp_path, module, GAUSSIANS, rule=rule)
    assert torch.equal(module.weight, before)
    assert {member.epoch for member in soup.members} == {0, 1}
    assert float(soup.state_dict["bias"]) == pytest.approx(-1.05)
    best = soup.ranking.best
    assert soup.members[0] == best
    assert soup.signals["label_agreement"] > best.signals["label_agreement"]
    assert 0 < soup.gain == pytest.approx(soup.signals[rule] - best.signals[rule])
    assert len(greedy_soup(tmp_path, module, GAUSSIANS, rule=rule, n_best=1).members) == 1


def test_a_soup_of_one_is_the_best_and_copies_count_once(tmp_path):
    save_cuts(tmp_path, 1.0, 2.5, 3.0)
    (tmp_path / "last.ckpt").write_bytes((tmp_path / "1.0.ckpt").read_bytes())
    soup = greedy_soup(tmp_path, nn.Linear(2, 1), GAUSSIANS)
    assert (len(soup.members), len(soup.ranking), soup.gain) == (1, 4, 0)
    assert soup.signals == soup.ranking.best.signals
    assert torch.equal(soup.state_dict["bias"], torch.tensor([-1.0]))


def test_a_soup_of_a_real_run_loads_as_lightning_does(tmp_path):
    class Saved(problems.Classifier):
        def __init__(self, lr=0.05):
            super().__init__(lr=lr)
            self.save_hyperparameters()

    data = problems.blobs()
    saving = ModelCheckpoint(tmp_path / "all", save_top_k=-1)
    problems.fit(tmp_path, saving, module=Saved(lr=0.2), max_epochs=5)
    signals = Signals().fit(*data)
    soup = greedy_soup(tmp_path / "all", Saved, data, rule="trust_score", signals=signals)
    soup.save(tmp_path / "soup.ckpt")
    module = Saved.load_from_checkpoint(tmp_path / "soup.ckpt", weights_only=True)
    assert module.lr == 0.2
    assert problems.same(module.state_dict(), soup.state_dict)
    content = load_checkpoint(tmp_path / "soup.ckpt").content
    assert content["epoch"] == soup.ranking.best.epoch
    assert content["averaged"] == [member.name for member in soup.members]
    assert "optimizer_states" not in content
    assert rank_checkpoints(tmp_path / "soup.ckpt", Saved, data, signals=signals).best.signals == soup.signals
    with pytest.raises(FileExistsError, match=r"soup.ckpt` already exists"):
        soup.save(tmp_path / "soup.ckpt")
    with pytest.raises(ValueError, match="`path`"):
        soup.save(tmp_path / "soup.safetensors")


def test_a_soup_of_bare_weights_is_saved_bare_and_nothing_finite_is_refused(tmp_path):
    torch.save(state_of(1.0), tmp_path / "one.pt")
    soup = greedy_soup(tmp_path / "one.pt", nn.Linear(2, 1), GAUSSIANS)
    soup.save(tmp_path / "new" / "soup.pt")
    assert load_checkpoint(tmp_path / "new" / "soup.pt").content.keys() == {"weight", "bias"}
    torch.save({"weight": torch.full((1, 2), torch.nan), "bias": torch.zeros(1)}, tmp_path / "one.pt")
    with pytest.raises(ValueError, match="finite"):
        greedy_soup(tmp_path / "one.pt", nn.Linear(2, 1), GAUSSIANS)
    with pytest.raises(ValueError, match="`n_best`"):
        greedy_soup(tmp_path / "one.pt", nn.Linear(2, 1), GAUSSIANS, n_best=0)
