"""Records as a run leaves them, made up: curves and details that look like a training's."""

import csv
import itertools
import json
import math
import random
import string

from bu_torch import SelectionRule
from bu_torch.report import read_record
from bu_torch.run.timing import FORMAT

LETTERS = list(string.ascii_uppercase)
BINS = {"edges": [0, 1], "counts": [1]}
CHECK = {"kind": "check", "epoch": 0, "step": 1, "pairs": [], "doubtful": [], "log_trust": BINS}
CHECK |= {"crossing": {"network": [0.5], "attainable": [0.75]}}
TABLE = "boundary_uncertainty.csv"
HEAD = "epoch,boundary_uncertainty,trust_score\n"


def checks(n_checks=60):
    """Rows of a table: boundary uncertainty rises, then falls slowly, as a network overfits."""
    noise, rows = random.Random(0), []
    for epoch in range(n_checks):
        place = epoch / n_checks
        learned, lost = 1 - math.exp(-15 * place), max(0.0, place - 0.4)
        rows.append(
            {
                "epoch": epoch,
                "step": 40 * (epoch + 1),
                "seconds": 6.8 + 0.8 * (epoch + 1) + noise.uniform(0, 0.2),
                "check_seconds": 0.03 * (epoch + 1) + noise.uniform(0, 0.01),
                "boundary_uncertainty": 0.27 * learned - 0.06 * lost + noise.gauss(0, 0.006),
                "trust_score": 1.1 + 0.9 * learned - 0.2 * lost + noise.gauss(0, 0.01),
                "expected_accuracy": 0.5 + 0.43 * learned - 0.03 * lost + noise.gauss(0, 0.004),
                "label_agreement": 0.5 + 0.44 * learned + 0.05 * place + noise.gauss(0, 0.004),
                "vote_agreement": 0.5 + 0.42 * learned - 0.04 * lost + noise.gauss(0, 0.004),
                "accuracy_uncertainty_trust": 0.1 + 0.8 * learned - 0.05 * lost + noise.gauss(0, 0.004),
                "prediction_changes": 1.0 if epoch == 0 else 0.02 + 0.3 * math.exp(-9 * place) + noise.uniform(0, 0.01),
            }
        )
    return rows


def header(classes=None, n_classes=None, **changed):
    settings = {"rule": "accuracy_uncertainty_trust", "patience": 20, "min_delta": 0.0, "start_from_epoch": 0}
    settings |= {"every_n_epochs": 1, "n_neighbors": 40, "n_draws": None, "seed": 0, **changed}
    data = {"n_samples": 2500, "n_draws": 4, "n_training": 10000, "shape": [16]}
    return {
        "kind": "header",
        "format": FORMAT,
        "settings": settings,
        "versions": {"bu_torch": "0.1.0", "python": "3.11.2", "torch": "2.10.0", "lightning": "2.6.0"},
        "data": {**data, "n_classes": n_classes or len(classes or LETTERS)},
        "classes": classes,
        "setup_seconds": 6.81,
        "started": "2026-01-31T12:00:00+00:00",
    }


def details(epoch, n_classes, n_checks):
    """What a check tells beside its row; the same pairs and samples in every epoch, their values moving on."""
    fixed, noise = random.Random(0), random.Random(epoch + 1)
    place, pairs = epoch / n_checks, []
    for k, m in itertools.combinations(range(n_classes), 2):
        if n_classes <= 5 or fixed.random() < 0.4:
            mass, uncertainty = fixed.expovariate(0.05), fixed.betavariate(2, 4) + noise.gauss(0, 0.03)
            pairs.append([k, m, mass, min(1, max(0, uncertainty))])
    total = sum(pair[2] for pair in pairs)
    for pair in pairs:
        pair[2] /= total
    pairs.sort(key=lambda pair: -pair[2])
    doubtful = []
    for _ in range(50):
        index, label = fixed.randrange(10000), fixed.randrange(n_classes)
        nearest = (label + 1 + fixed.randrange(n_classes - 1)) % n_classes
        prediction, nearest = (label, nearest) if fixed.random() < 0.6 else (nearest, label)
        index = index if fixed.random() < 0.8 else noise.randrange(10000)
        doubtful.append([index, label, prediction, nearest, 0.2 + fixed.random()])
    doubtful.sort(key=lambda doubt: doubt[4])
    return {
        "kind": "check",
        "epoch": epoch,
        "pairs": pairs,
        "crossing": {
            name: [most * math.exp(-part / 5) for part in range(20)]
            for name, most in (("network", 0.4 + 0.3 * place), ("attainable", 0.8))
        },
        "log_trust": _histogram([-7 + 0.5 * i for i in range(29)], 0.2 + 0.8 * place, 0.6, noise),
        "doubtful": doubtful,
        "recalls": [[k, 1 / n_classes, 0.5 + 0.5 * place, 0.5 + (k + 1) / (4 * n_classes)] for k in range(n_classes)],
    }


def end(kept_epoch, stopped_epoch=None, reason="Training ran until `max_epochs=60`.", best_model_path=""):
    places = {"kept_epoch": kept_epoch, "stopped_epoch": stopped_epoch}
    return {"kind": "end", **places, "reason": reason, "best_model_path": best_model_path}


def write_table(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list((rows or checks(1))[0])
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *([row[name] for name in names] for row in rows)])
    return path


def write_run(folder, n_checks=60, classes=None, n_classes=26, name="boundary_uncertainty", ended=True, **settings):
    """A whole run; its table's path."""
    n_classes, rows = len(classes or range(n_classes)), checks(n_checks)
    lines = [header(classes, n_classes, **settings), *(details(row["epoch"], n_classes, n_checks) for row in rows)]
    kept = SelectionRule().replay(rows)["epoch"] if settings.get("rule", "accuracy_uncertainty_trust") else None
    lines[-1]["kept_epoch"] = kept
    if ended:
        reason = f"Stopped in epoch {n_checks - 1}: accuracy_uncertainty_trust did not improve in the last 20 checks."
        lines.append(end(kept, n_checks - 1, reason, f"{folder}/boundary-epoch={kept}-step=1.ckpt"))
    path = write_table(folder / f"{name}.csv", rows)
    path.with_suffix(".jsonl").write_text("".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))
    return path


def table(folder, *parts):
    """A table of this text or these bytes."""
    path = folder / TABLE
    path.write_bytes(b"".join(part if isinstance(part, bytes) else part.encode() for part in parts))
    return path


def lines(folder, *entries, first=None):
    """A record of one check, with these lines beside it, after a header or `first`."""
    path = table(folder, HEAD, "0,0.5,1.5\n").with_suffix(".jsonl")
    written = (entry if isinstance(entry, str) else f"{json.dumps(entry)}\n" for entry in (first or header(), *entries))
    path.write_text("".join(written))
    return path


def run(folder, rows=None, **settings):
    """Write a run, or a table of these rows alone, or both, and read it."""
    if rows is None or settings:
        write_run(folder, **settings)
    if rows is not None:
        write_table(folder / TABLE, rows)
    return read_record(folder)


def _histogram(edges, centre, spread, noise):
    """Values beyond the edges are counted in the first and the last bin."""
    bounds = [-math.inf, *edges[1:-1], math.inf]
    below = [0.5 * (1 + math.erf((edge - centre) / (spread * math.sqrt(2)))) for edge in bounds]
    counts = [round(10_000 * max(0.0, b - a) * noise.uniform(0.95, 1.05)) for a, b in itertools.pairwise(below)]
    return {"edges": edges, "counts": counts}
