import pickle
import warnings
from pathlib import Path
from unittest import mock

import problems
import pytest
import torch
from problems import Bomb, same, weights_of
from torch import nn

from bu_torch import BoundaryUncertaintyStopping, load_checkpoint
from bu_torch.ranking.checkpoints import module_with_weights


class Chosen(problems.Classifier):
    def __init__(self, width=5, **others):
        super().__init__()
        self.save_hyperparameters()
        self.last = nn.Linear(3, width)


class Packed(Chosen):
    def __init__(self, packed):
        super().__init__(**packed)


def saved(path, content):
    torch.save(content, path)
    return load_checkpoint(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with the stopping callback, its module, and what was read from its file without unpickling classes."""
    stopping, module = BoundaryUncertaintyStopping(), Chosen(width=7, place=1)
    problems.fit(tmp_path_factory.mktemp("run"), stopping, module=module, max_epochs=2)
    return stopping, module, load_checkpoint(stopping.best_model_path)


def test_a_run_with_the_stopping_callback_is_read_without_unpickling_classes(run):
    stopping, module, checkpoint = run
    assert (checkpoint.epoch, checkpoint.step) == (stopping.best_epoch, 4 * (stopping.best_epoch + 1))
    assert same(checkpoint.state_dict, weights_of(module))
    assert checkpoint.content["hyper_parameters"] == {"width": 7, "place": 1}


def test_a_class_is_built_from_the_hyperparameters_in_the_file(run, random_states):
    checkpoint, before = run[2], random_states()

    def with_content(build=Chosen, **changed):
        return module_with_weights(build, checkpoint._replace(content=checkpoint.content | changed))

    module = with_content()
    assert module.last.out_features == 7
    assert same(weights_of(module), checkpoint.state_dict)
    assert random_states() == before
    assert with_content(hparams_name="others").hparams["place"] == 1
    assert with_content(Packed, hparams_name="packed").last.out_features == 7
    crafted = {"_instantiator": "os.system", "width": 7}
    for values, said in ((crafted, "Pass a module instance"), ({"width": "seven"}, "Chosen cannot be built")):
        with pytest.raises(ValueError, match=said):
            with_content(hyper_parameters=values)


@pytest.mark.parametrize(("wrong", "message"), [(lambda: 1, "must give a torch.nn.Module, got"), (1, "`module` must")])
def test_a_function_that_gives_a_module_is_called(tmp_path, wrong, message):
    checkpoint = saved(tmp_path / "plain.pt", nn.Linear(2, 3).state_dict())
    assert (checkpoint.epoch, checkpoint.step) == (None, None)
    assert same(weights_of(module_with_weights(lambda: nn.Linear(2, 3), checkpoint)), checkpoint.state_dict)
    with pytest.raises(TypeError, match=message):
        module_with_weights(wrong, checkpoint)


def test_a_module_is_left_as_it_is_to_the_bit(tmp_path, monkeypatch):
    monkeypatch.setattr("bu_torch.internal.replica._MOST_COPIED", 0)  # a look would share the frozen weights
    module, other = problems.Classifier().requires_grad_(False), problems.Classifier()
    other(torch.randn(30, 4))
    checkpoint = saved(tmp_path / "other.pt", {f"module.{name}": one for name, one in other.state_dict().items()})
    module.net[0].weight.grad = torch.ones(16, 4)
    before, parameters = weights_of(module), dict(module.named_parameters())
    assert same(weights_of(module_with_weights(module, checkpoint)), weights_of(other))
    checkpoint.state_dict["module.net.4.bias"] = torch.zeros(9)
    with pytest.raises(ValueError, match=r"other.pt` does not fit Classifier: .*net.4.bias"):
        module_with_weights(module, checkpoint)
    assert same(weights_of(module), before)
    assert all(value is parameters[name] for name, value in module.named_parameters())
    assert torch.equal(module.net[0].weight.grad, torch.ones(16, 4))


def test_extra_state_is_loaded_into_a_copy(tmp_path):
    class Counting(nn.Linear):
        count = 1

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    module, other = Counting(2, 2), Counting(2, 2)
    other.count = 5
    assert module_with_weights(module, saved(tmp_path / "file.pt", other.state_dict())).count == 5
    assert module.count == 1


def test_lightning_hooks_see_the_checkpoint(run):
    class Renaming(Chosen):
        def on_load_checkpoint(self, checkpoint):
            checkpoint["state_dict"] = {name.removeprefix("old."): v for name, v in checkpoint["state_dict"].items()}

    old = {f"old.{name}": value for name, value in run[2].state_dict.items()}
    assert same(weights_of(module_with_weights(Renaming, run[2]._replace(state_dict=old))), run[2].state_dict)


@pytest.mark.parametrize("wrap", [lambda mark: mark, lambda mark: {"state_dict": {"w": torch.ones(1)}, "x": mark}])
def test_a_pickle_of_other_classes_is_refused_and_not_run_unless_told(tmp_path, wrap):
    content, file = wrap(Bomb(tmp_path / "mark")), tmp_path / "crafted.ckpt"
    with pytest.raises(ValueError, match=r"crafted.ckpt` .*mkdir.*weights_only=False"):
        saved(file, content)
    file.write_bytes(pickle.dumps(content))
    with warnings.catch_warnings(action="error"), pytest.raises(ValueError, match=r"crafted.ckpt"):
        load_checkpoint(file)
    assert not (tmp_path / "mark").exists()
    torch.save({"state_dict": nn.Linear(1, 1).state_dict(), "folder": Path("x")}, file)
    assert load_checkpoint(file, weights_only=False).content["folder"] == Path("x")


def test_what_is_no_checkpoint_is_refused_by_name(tmp_path):
    torch.save(nn.Linear(9, 9).state_dict(), tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    torn = {f"torn {share}": content[: int(share * len(content))] for share in (0.01, 0.1, 0.5, 0.99)}
    for name, content in (torn | {"empty": b"", "text": b"hello"}).items():
        (tmp_path / name).write_bytes(content)
    torch.jit.script(nn.Linear(1, 1)).save(tmp_path / "script")
    others = {"tensor": torch.ones(3), "words": {"state_dict": {"weight": "text"}}, "nothing": {"epoch": 3}}
    for name, content in (others | {"module": nn.Linear(1, 1)}).items():
        torch.save(content, tmp_path / name)
    for file in set(tmp_path.iterdir()) - {tmp_path / "whole"}:
        with pytest.raises(ValueError, match=f"{file.name}`"):
            load_checkpoint(file)
    for name in ("missing", "."):
        with pytest.raises(FileNotFoundError, match="checkpoint"):
            load_checkpoint(tmp_path / name)


def test_weights_that_claim_more_than_the_file_holds_are_refused(tmp_path):
    overlapping = torch.ones(10**5).as_strided((5 * 10**4, 5 * 10**4), (1, 1))
    for weight in (torch.ones(3, 2, device="meta"), torch.ones(1).expand(10**7, 10**6), overlapping):
        checkpoint = saved(tmp_path / "file.pt", {"weight": weight, "bias": torch.ones(3)})
        with pytest.raises(ValueError, match=r"file.pt` does not fit Linear"):
            module_with_weights(nn.Linear(2, 3), checkpoint)


def test_safetensors_files_ask_for_the_package_and_are_read(tmp_path, monkeypatch):
    file = tmp_path / "file.safetensors"
    file.write_bytes(b"hello")
    with monkeypatch.context() as patch:
        patch.setattr("bu_torch.ranking.checkpoints.import_module", mock.Mock(side_effect=ImportError))
        with pytest.raises(ImportError, match="pip install safetensors"):
            load_checkpoint(file)
    safetensors = pytest.importorskip("safetensors.torch")
    with pytest.raises(ValueError, match=r"file.safetensors` is not a safetensors file"):
        load_checkpoint(file)
    state = nn.Linear(2, 3).state_dict()
    safetensors.save_file(state, file)
    assert same(load_checkpoint(file).state_dict, state)


NAMES = [(key, "{}") for key in ("state_dict", "model_state_dict", "model")]
NAMES += [("", wrapped) for wrapped in ("_orig_mod.{}", "module.{}", "module._orig_mod.{}", "net.module.{}")]


@pytest.mark.parametrize(("key", "wrapped"), NAMES)
def test_weights_are_found_under_the_usual_names_and_in_wrappers(tmp_path, key, wrapped):
    """`torch.compile` and `DataParallel` put names of their own into those of weights, before them or within."""
    saved_from, module = problems.Classifier(), problems.Classifier()
    before, others = wrapped.split("{}")[0], weights_of(saved_from)
    names = {name: before + (name.removeprefix("net.") if before.startswith("net.") else name) for name in others}
    state = {names[name]: value for name, value in others.items()}
    checkpoint = saved(tmp_path / "file.pth", {key: state, "epoch": 4, "optimizer": {"lr": 1.0}} if key else state)
    assert checkpoint.epoch == (4 if key else None)
    assert same(weights_of(module_with_weights(module, checkpoint)), others)
    wrapper = nn.ModuleDict({"module": module})
    loaded = module_with_weights(wrapper, saved(tmp_path / "plain.pt", others))
    assert same(weights_of(loaded["module"]), others)
