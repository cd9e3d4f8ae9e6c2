"""The rules that are compared, and the command."""

import pytest

from bu_torch import Signals
from bu_torch.rule.rules import STANDARD_ERROR

SEED, EPOCHS = 3, 40
ACCURACY = "averaged_expected_accuracy"


def record(**columns):
    """Curves of five epochs."""
    both = ("", "averaged_")
    curves = {prefix + name: [0.5] * 5 for prefix in both for name in (*Signals.NAMES, STANDARD_ERROR)}
    curves |= {"test_error": [0.5, 0.4, 0.3, 0.2, 0.1], "averaged_test_error": [0.55, 0.45, 0.35, 0.25, 0.15]}
    curves |= {"long_test_error": [0.9] * 5, "changed_predictions": [1, 4, 3, 5, 6], "disparity": [0] * 5}
    curves |= {"skill": [0.5] * 5, "alone": [0.1] * 5, "n_measured": [600] * 5}
    curves |= {f"most_{name}": [2.0] * 5 for name in ("accuracy", "uncertainty", "trust")}
    part = {"test_error": [0.6, 0.61, 0.62, 0.63, 0.64], "averaged_test_error": [0.7, 0.71, 0.72, 0.73, 0.74]}
    names = ("val_accuracy", "val_loss", "val_scaled_loss")
    part |= {prefix + name: [0.0, 0.0, 1.0, 0.0, 0.0] for name in names for prefix in both}
    return {"all": curves | columns, "quarter": part, "tenth": part}


@pytest.mark.parametrize(
    ("rule", "columns", "expected"),
    [
        ("last epoch", {}, 0.1),
        ("last epoch, averaged (0.97)", {}, 0.9),
        ("bu-torch", {"averaged_accuracy_uncertainty_trust": [0.1, 0.2, 0.9, 0.3, 0.9]}, 0.35),
        ("expected accuracy", {ACCURACY: [0.1, 0.2, 0.9, 0.3, 0.3]}, 0.35),
        ("latest within 1 standard errors", {"averaged_accuracy_uncertainty_trust": [0.1, 0.2, 0.9, 0.8, 0.5]}, 0.15),
        (
            "uncertainty and trust",
            {ACCURACY: [9, 0, 0, 0, 0], "averaged_boundary_uncertainty": [0.1, 0.3, 0.2, 0.1, 0.1]},
            0.45,
        ),
        ("accuracy and trust", {"averaged_boundary_uncertainty": [9, 0, 0, 0, 0], ACCURACY: [0, 0, 0, 0.7, 0]}, 0.25),
        ("boundary uncertainty, no average", {"boundary_uncertainty": [0.1, 0.2, 0.1, 0.1, 0.3]}, 0.1),
        ("hold-out accuracy, 25 %", {}, 0.62),
        ("hold-out loss, 25 %, averaged", {}, 0.7),
        ("hold-out accuracy, 10 %, then retrained on all", {}, 0.3),
        ("Label Wave", {}, 0.3),
        ("gradient disparity, five in all", {"disparity": [0, 1, 2, 3, 4]}, 0.1),
        ("best average in hindsight", {}, 0.15),
        ("best epoch", {}, 0.1),
    ],
)
def test_what_each_rule_keeps(quality, rule, columns, expected):
    rows = {row["rule"]: row["test_error"] for row in quality.judge(record(**columns))}
    assert rows[rule] == expected
