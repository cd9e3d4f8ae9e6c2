"""Records as a run leaves them, made up: curves and details that look like a training's."""

import json
import math
import random

from bu_torch.report import read_record

FORMAT = 4
CHECK = {"kind": "check", "epoch": 0, "step": 1, "boundary_uncertainty": 0.5, "trust_score": 1.5, "doubtful": []}
CHECK |= {"crossing": {"network": [0.5], "attainable": [0.75]}, "recalls": []}


def values(place, noise):
    """Boundary uncertainty rises, then falls slowly, as a network overfits; `place` is in [0, 1]."""
    learned, lost = 1 - math.exp(-15 * place), max(0.0, place - 0.4)
    return {
        "boundary_uncertainty": 0.27 * learned - 0.06 * lost + noise.gauss(0, 0.006),
        "trust_score": 1.1 + 0.9 * learned - 0.2 * lost + noise.gauss(0, 0.01),
        "expected_accuracy": 0.5 + 0.43 * learned - 0.03 * lost + noise.gauss(0, 0.004),
        "label_agreement": 0.5 + 0.44 * learned + 0.05 * place + noise.gauss(0, 0.004),
        "vote_agreement": 0.5 + 0.42 * learned - 0.04 * lost + noise.gauss(0, 0.004),
        "accuracy_uncertainty_trust": 0.1 + 0.8 * learned - 0.05 * lost + noise.gauss(0, 0.004),
        "prediction_changes": 1.0 if place == 0 else 0.02 + 0.3 * math.exp(-9 * place) + noise.uniform(0, 0.01),
    }


def check(epoch, n_checks, n_classes, n_doubtful, noise):
    place = epoch / n_checks
    times = {"seconds": 6.8 + 0.8 * (epoch + 1), "check_seconds": 0.03 * (epoch + 1), "train_loss": 1.5 - place}
    doubtful = []
    for row in range(n_doubtful):
        label = row % n_classes
        doubtful.append([row * 7, label, (label + row // 3) % n_classes, (label + 1) % n_classes, 0.2 + row / 50])
    return {
        **{"kind": "check", "epoch": epoch, "step": 40 * (epoch + 1), **times, **values(place, noise)},
        "crossing": {
            name: [most * math.exp(-part / 5) for part in range(20)]
            for name, most in (("network", 0.4 + 0.3 * place), ("attainable", 0.8))
        },
        "doubtful": doubtful,
        "recalls": [[k, 1 / n_classes, 0.5 + 0.5 * place, 0.5 + (k + 1) / (4 * n_classes)] for k in range(n_classes)],
    }


def header(classes=None, **changed):
    settings = {"rule": "accuracy_uncertainty_trust", "patience": 20, "start_from_epoch": 0, **changed}
    data = {"n_samples": 2500, "n_draws": 4, "n_training": 10000, "shape": [16], "n_classes": 3}
    return {
        **{"kind": "header", "format": FORMAT, "settings": settings, "versions": {"torch": "2.10.0"}, "data": data},
        **{"classes": classes, "setup_seconds": 6.81, "started": "2026-01-31T12:00:00+00:00"},
    }


def end(kept_epoch, stopped_epoch=None, reason="Training ran until `max_epochs=60`.", best_model_path=""):
    numbers = {"kept_epoch": kept_epoch, "stopped_epoch": stopped_epoch, "saving_seconds": 0.5, "training_seconds": 60}
    return {"kind": "end", **numbers, "reason": reason, "best_model_path": best_model_path}


def write(folder, *entries, name="boundary_uncertainty"):
    """A record of these lines."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    path.write_text("".join(entry if isinstance(entry, str) else f"{json.dumps(entry)}\n" for entry in entries))
    return path


def write_run(folder, n_checks=60, classes=("a", "b", "c"), n_doubtful=50, name="boundary_uncertainty", **settings):
    noise = random.Random(0)
    checks = [check(epoch, n_checks, len(classes), n_doubtful, noise) for epoch in range(n_checks)]
    kept = max(checks, key=lambda check: check["accuracy_uncertainty_trust"])["epoch"]
    checks[-1]["kept_epoch"] = kept
    reason = f"Stopped in epoch {n_checks - 1}: score did not improve in the last 20 checks."
    last = end(kept, n_checks - 1, reason, f"{folder}/boundary-epoch={kept}-step=1.ckpt")
    return write(folder, header(list(classes), **settings), *checks, last, name=name)


def run(folder, **settings):
    return read_record(write_run(folder, **settings))
