"""Hugging Face's own `Trainer`, with small networks that are made here."""

import pickle
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from problems import same  # noqa: E402

from bu_torch.integrations.transformers import BoundaryUncertaintyCallback  # noqa: E402

PAD, LENGTH = 0, 8
PAGE = Path(__file__).parents[2] / "docs/recipes/huggingface.md"


def texts(n=120):
    """Texts of 5 to 8 tokens; those of the second half of the vocabulary are more frequent in class 1."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for i in range(n):
        tokens = torch.randint(1, 10, (5 + i % 4,), generator=generator)
        is_second = torch.rand(len(tokens), generator=generator) < 0.3 + 0.4 * (i % 2)
        found.append({"input_ids": (tokens + 10 * is_second).tolist(), "labels": i % 2})
    return found


def pad_to_longest(samples):
    length = max(len(one["input_ids"]) for one in samples)
    ids = torch.tensor([one["input_ids"] + [PAD] * (length - len(one["input_ids"])) for one in samples])
    labels = torch.tensor([one["labels"] for one in samples])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


def bert():
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=20, max_position_embeddings=LENGTH, pad_token_id=PAD, **small)
    return transformers.BertForSequenceClassification(config)


def trainer(folder, *callbacks, model=None, samples=None, collate=pad_to_longest, epochs=4, **options):
    options = {"save_strategy": "no", "learning_rate": 0.01, "lr_scheduler_type": "constant", **options}
    options |= {"num_train_epochs": epochs, "per_device_train_batch_size": 20, "per_device_eval_batch_size": 500}
    quiet = {"logging_steps": 1, "report_to": "none", "disable_tqdm": True}
    arguments = transformers.TrainingArguments(str(folder), use_cpu=True, **quiet, **options)
    data = {"train_dataset": samples or texts(), "eval_dataset": texts(), "data_collator": collate}
    return transformers.Trainer(model or bert(), arguments, callbacks=list(callbacks), **data)


def trained(*args, **options):
    made = trainer(*args, **options)  # which seeds all random numbers
    made.train()
    return made


def losses(run):
    return [entry["loss"] for entry in run.state.log_history if "loss" in entry]


def callback(**options):
    return BoundaryUncertaintyCallback(**{"n_draws": 1, "n_neighbors": 10, **options})


def test_it_stops_and_loads_the_best_epoch_and_training_before_is_the_same_to_the_bit(tmp_path):
    run = trained(tmp_path, ours := callback(patience=2, rule="expected_accuracy", averaging=None), epochs=40)
    stopper, logged = ours.stopper, [entry for entry in run.state.log_history if "expected_accuracy" in entry]
    n_epochs, highest = len(logged), max(logged, key=lambda entry: entry["expected_accuracy"])
    assert [entry["epoch"] for entry in logged] == list(range(1, n_epochs + 1))
    assert [check["epoch"] for check in stopper.history] == list(range(n_epochs))
    assert stopper.stopped_epoch == highest["epoch"] + 1 == n_epochs - 1 < 39
    assert highest["expected_accuracy"] > 0.55
    stays = callback(load_best_model_at_end=False)
    plain, watched = (trained(tmp_path, *ours, epochs=n_epochs) for ours in ([], [stays]))
    assert losses(run) == losses(watched) == losses(plain)
    assert same(watched.model.state_dict(), plain.model.state_dict())
    best = trained(tmp_path, epochs=stopper.best_epoch + 1)
    assert same(run.model.state_dict(), best.model.state_dict())


def test_schedule_free_weights_are_kept_where_an_evaluation_reads_them(tmp_path):
    ours = callback(averaging=None)
    run = trained(tmp_path, ours, optim="schedule_free_adamw", epochs=2)
    kept = {name: value.clone() for name, value in run.model.state_dict().items()}
    run.evaluate(texts())
    assert same(run.model.state_dict(), kept)
    again = pickle.loads(pickle.dumps(ours))  # noqa: S301  (these are our own bytes)
    assert again.stopper.best_epoch == ours.stopper.best_epoch


@pytest.mark.parametrize(
    ("options", "check_steps"),
    [
        pytest.param({"save_strategy": "epoch"}, None, id="epoch"),
        pytest.param({"save_strategy": "steps", "save_steps": 9}, None, id="within an epoch"),
        pytest.param({"save_strategy": "steps", "save_steps": 18}, 4, id="checks by steps"),
    ],
)
def test_a_resumed_training_keeps_the_epoch_that_one_in_one_piece_keeps(tmp_path, options, check_steps):
    def run(folder, *others):
        ours = callback(check_steps=check_steps)
        return trainer(tmp_path / folder, ours, *others, epochs=6, **options), ours

    class Crash(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 22:
                raise RuntimeError("crash")

    whole, in_one_piece = run("whole")
    whole.train()
    crashing, _ = run("parts", Crash())
    with pytest.raises(RuntimeError, match="crash"):
        crashing.train()
    resumed, in_parts = run("parts")
    resumed.train(resume_from_checkpoint=True)
    assert in_parts.stopper.history == in_one_piece.stopper.history
    assert in_parts.stopper.best_epoch == in_one_piece.stopper.best_epoch
    assert same(resumed.model.state_dict(), whole.model.state_dict())


def broken():
    model = bert()
    model.register_forward_pre_hook(lambda *_: {}["heads"])
    return model


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(texts())


class NoLength:
    """Batches of 20 in order, without a length."""

    def __iter__(self):
        return iter([list(range(start, start + 20)) for start in range(0, 100, 20)])


def loaded(**options):
    return torch.utils.data.DataLoader(texts(), collate_fn=pad_to_longest, **options)


@pytest.mark.parametrize(
    ("loader", "options", "check_steps", "steps"),
    [
        (None, {"max_steps": 4}, None, [4]),
        (None, {"max_steps": 8}, None, [6, 8]),
        (None, {"gradient_accumulation_steps": 4, "max_steps": 3}, None, [2, 3]),
        (None, {"epochs": 2}, 100, [12]),
        (None, {"epochs": 2}, 5, [5, 10, 12]),
        (loaded(batch_size=40, shuffle=True), {"epochs": 2}, None, [3, 6]),
        (loaded(batch_sampler=NoLength()), {"max_steps": 8}, None, [5, 8]),
    ],
)
def test_epochs_and_training_end_with_a_check(tmp_path, monkeypatch, loader, options, check_steps, steps):
    if loader is not None:
        monkeypatch.setattr(transformers.Trainer, "get_train_dataloader", lambda self: loader)
    run = trained(tmp_path, ours := callback(check_steps=check_steps), **options)
    assert [check["step"] for check in ours.stopper.history] == steps
    assert [entry["step"] for entry in run.state.log_history if "expected_accuracy" in entry] == steps
    assert ours.stopper.engine.preparation["plan"][0] == (120 if steps != [5, 8] else 100)


def test_the_example_on_the_page_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # a small BERT and its words lie there, where the page names one that is fetched
    monkeypatch.setattr("bu_torch.run.engine.Engine.release", lambda engine: None)
    letters = "abcdefghijklmno"
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]))
    tokenizer = transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"), model_max_length=LENGTH)
    tokenizer.save_pretrained("bert-base-uncased")
    bert().save_pretrained("bert-base-uncased")
    read = [(" ".join(letters[one % 15] for one in text["input_ids"]), text["labels"]) for text in texts()]
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    given = dict(zip(("texts", "labels"), zip(*read, strict=True), strict=True))
    exec(code, given)  # noqa: S102  (our own page)
    assert "Training ended. " in capsys.readouterr().out
    assert given["callback"].stopper.history[-1]["step"] == 75
    names = given["callback"].stopper.engine.reader.packing.names
    assert {*names} == {"['input_ids']", "['attention_mask']", "['token_type_ids']"}


@pytest.mark.parametrize(
    ("words", "settings", "options"),
    [
        ("KeyError: 'heads'", {}, {"model": broken}),
        ("`input_key=.'x'", {"input_key": "x"}, {}),
        ("`label_key='target'`", {"label_key": "target"}, {}),
        ("unsharded weights .* a length", {}, {"samples": Stream, "max_steps": 6}),
        ("unsharded weights .* a length", {}, {"fsdp": ["full_shard"]}),
        ("DataLoader`, got list", {}, {"loader": list(loaded(batch_size=20))}),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_step(tmp_path, monkeypatch, words, settings, options):
    options = {name: value() if callable(value) else value for name, value in options.items()}
    if batches := options.pop("loader", None):
        monkeypatch.setattr(transformers.Trainer, "get_train_dataloader", lambda self: batches)
    fsdp = options.pop("fsdp", [])
    run = trainer(tmp_path, callback(**settings), **options)
    run.args.fsdp = fsdp
    with pytest.raises(ValueError, match=words):
        run.train()
    assert run.state.global_step == 0
