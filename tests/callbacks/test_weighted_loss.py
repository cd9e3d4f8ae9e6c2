"""Losses that weigh classes: the callbacks measure with the weights that the first steps give the labels."""

import lightning.pytorch as pl
import pytest
import torch
from problems import blobs, loader, trainer
from scenarios import Model, normed
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bu_torch.callbacks import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping
from bu_torch.callbacks.losses import LossWatch
from bu_torch.report import read_record

X, Y = blobs()
WEIGHTS = [1.0, 4.0, 2.0]
W = torch.tensor(WEIGHTS)
of_each = nn.CrossEntropyLoss(reduction="none")


class Step(Model):
    """Trains by what a function makes of module, logits and labels."""

    def __init__(self, step, *losses):
        super().__init__(normed())
        self.losses, self.step = nn.ModuleList(losses), step

    def training_step(self, batch, batch_idx):
        return self.step(self, self(batch[0]), batch[1])


class OfTwo(Step):
    """Of two classes that share one logit."""

    def forward(self, x):
        return super().forward(x)[:, 0]


def first(module, logits, labels):
    return module.losses[0](logits, labels)


def both(module, logits, labels):
    return module.losses[0](logits, labels) + module.losses[1](logits, labels)


def logged(module, logits, labels):
    module.losses[0](logits.detach(), labels)
    return module.losses[1](logits, labels)


def watched(module, logits, labels):
    with torch.no_grad():
        module.losses[0](logits, labels)
    return module.losses[1](logits, labels)


def own(module, logits, labels):
    """No loss gets the labels."""
    return module.losses[0](logits, (labels + 1) % 3) - logits.log_softmax(dim=1)[range(len(labels)), labels].mean()


def functional(module, logits, labels):
    return F.cross_entropy(logits, labels, weight=W)


@torch.compile(backend="aot_eager", fullgraph=True)
def of_graph(logits, labels):
    return F.cross_entropy(logits, labels, weight=W)


def drifting(module, logits, labels):
    """The targets of the first loss are the labels in the first step alone, as they may be by chance."""
    others = labels if module.global_step < 1 else (labels + 1) % 3
    return module.losses[0](logits, others) + module.losses[1](logits, labels)


def alternating(module, logits, labels):
    """Every second step has an auxiliary loss, and every third none at all."""
    if module.trainer.fit_loop.batch_idx % 3 == 2:
        return None
    others = module.losses[1](logits, (labels + 1) % 3) if module.global_step % 2 else 0
    return others + module.losses[0](logits, labels)


def of_the_batch(module, logits, labels):
    counts = torch.bincount(labels, minlength=3).clamp(min=1)
    return F.cross_entropy(logits, labels, weight=1 / counts)


def focal(module, logits, labels):
    each = of_each(logits, labels)
    return (W[labels] * (1 - (-each).exp()) ** 2 * each).mean()


def one_by_one(module, logits, labels):
    each = (F.cross_entropy(one, label) for one, label in zip(logits, labels, strict=True))
    return sum(each) + F.mse_loss(logits.mean(), W.mean())


def penalised(module, logits, labels):
    loss = F.cross_entropy(logits, labels, weight=W)
    (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
    return loss + gradient.square().sum()


def checkpointed(module, logits, labels):
    return checkpoint(lambda: F.cross_entropy(logits, labels, weight=W), use_reentrant=False)


def sparse(module, logits, labels):
    product = logits.to_sparse() * torch.ones_like(logits).to_sparse()
    return first(module, logits, labels) + 0 * torch.sparse.sum(product)


def each_otherwise(module, logits, labels):
    return (of_each(logits, labels) * (1 + logits[:, 0].detach().abs())).mean()


def binary_each(module, logits, labels):
    return F.binary_cross_entropy_with_logits(logits, labels.float(), weight=torch.tensor([2.0, 1.0])[labels])


def columns(module, logits, labels):
    return F.binary_cross_entropy_with_logits(logits, F.one_hot(labels, 3).float(), pos_weight=W)


def of_products(module, logits, labels):
    return -(F.one_hot(labels, 3) * logits.log_softmax(dim=1) * W).sum(dim=1).mean()


def weighing(weights=WEIGHTS):
    return Step(first, nn.CrossEntropyLoss(torch.tensor(weights)))


def fit(folder, kind=BoundaryUncertaintyMonitor, make=weighing, labels=Y, **settings):
    pl.seed_everything(3, verbose=False)
    callback = kind(n_neighbors=10, n_draws=1, **settings)
    trainer(folder, callback, max_epochs=2).fit(make(), loader(X, labels))
    return callback


def lines(log):
    return [line for line in log.messages if "weighs the classes by" in line]


CE, BCE = nn.CrossEntropyLoss, nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0]))
ALIKE = "counts all classes alike"
# By the losses: the step, the loss modules, the weights that are measured with, and what is said if there are none.
LOSSES = {
    "a loss": (Step, first, [CE(W)], WEIGHTS, ""),
    "one of two": (Step, both, [CE(W), CE()], None, "2 losses of the labels"),
    "one that is logged": (Step, logged, [CE(W), CE()], None, ""),
    "one without gradient": (Step, watched, [CE(W), CE()], None, ""),
    "two alike": (Step, both, [CE(W), CE(W)], WEIGHTS, ""),
    "two that differ": (Step, both, [CE(W), CE(W.flip(0))], None, "2 losses of the labels"),
    "of other targets": (Step, lambda m, z, y: m.losses[0](z, (y + 1) % 3) + F.cross_entropy(z, y), [CE(W)], None, ""),
    "a loss of one's own": (Step, own, [CE(W)], None, "its targets are not the labels"),
    "one that is not called": (Step, functional, [CE(W.flip(0))], WEIGHTS, ""),
    "a function": (Step, functional, [], WEIGHTS, ""),
    "of log probabilities": (Step, lambda m, z, y: F.nll_loss(z.log_softmax(dim=1), y, W), [], WEIGHTS, ""),
    "mixup": (Step, lambda m, z, y: 0.7 * m.losses[0](z, y) + 0.3 * m.losses[0](z, y.flip(0)), [CE(W)], WEIGHTS, ""),
    "a class that does not count": (Step, first, [CE(torch.tensor([1.0, 0.0, 1.0]))], None, "that is not positive"),
    "all alike": (Step, first, [CE(torch.full((3,), 2.0))], None, ""),
    "two classes": (OfTwo, lambda m, z, y: m.losses[0](z, y.clamp(max=1).float()), [BCE], [1.0, 3.0], ""),
    "one weight of all outputs": (Step, lambda m, z, y: m.losses[0](z, F.one_hot(y, 3).float()), [BCE], None, ""),
    "a compiled function": (Step, lambda m, z, y: of_graph(z, y), [], None, "no loss with targets was seen"),
    "of each sample": (Step, lambda m, z, y: (of_each(z, y) * W[y]).sum() / W[y].sum(), [], WEIGHTS, ""),
    "of each sample, not by class": (Step, each_otherwise, [], None, "not by their classes alone"),
    "focal": (Step, focal, [], WEIGHTS, ""),
    "a quotient": (Step, lambda m, z, y: (of_each(z, y) / (1 / W)[y]).mean(), [], WEIGHTS, ""),
    "of scalars": (Step, one_by_one, [], None, ""),
    "with a gradient penalty": (Step, penalised, [], WEIGHTS, ""),
    "in a checkpoint, which is not run again": (Step, checkpointed, [], None, "no loss with targets was seen"),
    "beside a sparse product": (Step, sparse, [CE(W)], WEIGHTS, ""),
    "of one-hot labels": (Step, lambda m, z, y: F.cross_entropy(z, F.one_hot(y, 3).float(), weight=W), [], WEIGHTS, ""),
    "a margin": (Step, lambda m, z, y: F.multi_margin_loss(z, y, weight=W), [], WEIGHTS, ""),
    "of each binary label": (OfTwo, binary_each, [], [2.0, 1.0], ""),
    "of each output": (Step, columns, [], None, "not by their classes alone"),
    "of each batch": (Step, of_the_batch, [], None, "they differ between steps"),
    "not alone in each step": (Step, alternating, [CE(W), CE()], WEIGHTS, ""),
    "other targets that are equal in the first batches": (Step, drifting, [CE(W), CE()], None, ""),
    "of one-hot products": (Step, of_products, [], WEIGHTS, ""),
    "an einsum": (Step, lambda m, z, y: torch.einsum("n,n->", of_each(z, y), W[y]), [], WEIGHTS, ""),
    "a product of vectors": (Step, lambda m, z, y: of_each(z, y) @ W[y] / len(y), [], WEIGHTS, ""),
    "an index that is ignored": (Step, lambda m, z, y: F.cross_entropy(z, y, ignore_index=2), [], None, "label -100"),
    "the other class": (OfTwo, lambda m, z, y: m.losses[0](z, (y == 0).float()), [BCE], None, ALIKE),
}


@pytest.mark.parametrize("losses", LOSSES)
def test_weights_count_if_the_first_step_gives_that_loss_the_labels(tmp_path, log, losses):
    kind, step, modules, expected, said = LOSSES[losses]
    labels = Y.clamp(max=1) if kind is OfTwo else Y
    alike = [1.0] * (int(labels.max()) + 1)

    def make():
        return kind(step, *modules)

    found = fit(tmp_path / "found", make=make, labels=labels)
    given = fit(tmp_path / "given", make=make, labels=labels, class_weight=expected or alike)
    assert found.history == given.history
    assert len(lines(log)) == (expected is not None)
    assert (ALIKE in log.text) == bool(said)
    assert said in log.text
    assert read_record(found.record_path).settings["class_weight"] == (expected and repr(expected))


class TestTheLossOfTheModule:
    def test_weighs_what_is_measured(self, tmp_path, log):
        found = fit(tmp_path)
        (line,) = lines(log)
        assert all(one in line for one in ("by 1, 4, 2, as the loss", "`class_weight=[1.0] * 3` counts all"))
        plain = fit(tmp_path, class_weight=[1.0] * 3)
        assert len(lines(log)) == 1
        assert found.history != plain.history
        assert found.settings.class_weight is None

    @pytest.mark.parametrize("make", [weighing, lambda weights=None: Step(functional)])
    def test_is_that_of_the_checkpoint_when_a_run_resumes(self, tmp_path, log, recwarn, make):
        """They are a buffer of the loss, which Lightning loads, or are given to a function."""
        path = fit(tmp_path, BoundaryUncertaintyStopping, make).best_model_path
        again = BoundaryUncertaintyStopping(n_neighbors=10, n_draws=1)
        trainer(tmp_path, again, max_epochs=4).fit(make([1.0, 1.0, 3.0]), loader(X, Y), ckpt_path=path)
        assert [check["epoch"] for check in again.history] == [0, 1, 2, 3]
        assert again.state_dict()["n_not_compared"] == 0
        before, after, *_ = lines(log)
        assert after == before.replace("of these labels does", "of these labels did in the run that is resumed")
        assert not [one for one in recwarn if "cannot be compared" in str(one.message)]

    def test_is_seen_behind_a_compiled_network(self, tmp_path, log):
        def compiled():
            module = weighing()
            module.net.compile(backend="aot_eager")
            return module

        assert fit(tmp_path, make=compiled).history
        assert len(lines(log)) == 1


def test_losses_of_a_transform_of_torch_func_are_left_alone(tmp_path):
    class Ensemble(Model):
        def training_step(self, batch, batch_idx):
            own = {name: torch.stack([one, 0.9 * one]) for name, one in self.named_parameters()}

            def loss(values):
                return F.cross_entropy(torch.func.functional_call(self, values, (batch[0],)), batch[1], weight=W)

            return torch.func.vmap(loss, randomness="different")(own).mean()

    callback = BoundaryUncertaintyMonitor(n_neighbors=20)
    with pytest.warns(UserWarning, match="Training has not called `Ensemble`"):  # but by `functional_call`
        trainer(tmp_path, callback, max_epochs=1).fit(Ensemble(nn.Linear(4, 3)), loader(X, Y))
    assert len(callback.history) == 1


def test_a_class_without_samples_may_have_any_weight():
    watch, labels = LossWatch(), torch.tensor([0, 2, 2])
    logits = torch.zeros(3, 3, requires_grad=True)
    watch.begin(labels)
    watch.see(F.cross_entropy(logits, labels, weight=torch.tensor([1.0, torch.inf, 2.0])))
    watch.end()
    assert watch.found(3, {0, 2}) == ([1.0, 1.0, 2.0], "")
    assert watch.found(3)[0] is None


def test_a_class_that_the_first_steps_lack_is_waited_for_or_counts_as_the_others():
    logits = torch.zeros(40, 3, requires_grad=True)
    for weights, expected in ((torch.tensor([2.0, 2.0, 6.0]), [2.0, 2.0, 6.0]), (torch.ones(3), None)):
        watch = LossWatch()
        for n in (2, 2, 3):
            labels = torch.arange(40) % n
            watch.begin(labels)
            watch.see((of_each(logits, labels) * weights[labels]).mean())
            watch.end()
        assert not watch.has_seen_enough
        assert watch.found(3) == (expected, "")


def test_an_epoch_without_steps_is_said(tmp_path, log):
    class Late(Step):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if self.current_epoch == 0 else None

    fit(tmp_path, make=lambda: Late(functional))
    assert "no loss with targets was seen" in log.text
