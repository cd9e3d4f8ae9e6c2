"""The table of test errors."""

import json

import pandas as pd


def rows(errors, collection, noise, first, others=0.5):
    values = [first] + [others] * (len(errors.RULES) - 2) + [0.01]
    about = {"collection": collection, "data": "some", "setting": "adamw", "noise": noise, "seed": 0, "epochs": 40}
    return pd.DataFrame({"rule": list(errors.RULES), "test_error": values, "epochs_run": 30}).assign(**about)


def test_means_are_over_trainings_of_a_kind_and_the_least_is_bold(errors, tmp_path, capsys):
    parts = {
        "keel": [rows(errors, "keel", "none", 0.1), rows(errors, "keel", "hard-0.2", 0.2)],
        "tables": [rows(errors, "tables", "none", 0.4), rows(errors, "tables", "pairs-0.4", 0.6)],
        "images": [rows(errors, "images_unseen", "none", 0.5)],
        "quick": [rows(errors, "quick", "none", 0.9)],
    }
    for name, found in parts.items():
        pd.concat(found).to_csv(tmp_path / f"quality-{name}.csv.gz", index=False)
    case, found = {"epochs": 20}, dict.fromkeys(errors.FINE_TUNING, 0.5) | {"default": 0.25, "best": 0.01}
    runs = [{"case": case | {"noise": noise}, "errors": found | {"hold-out loss": 0.1}} for noise in (0.0, 0.0, 0.17)]
    (tmp_path / "finetune.json").write_text(json.dumps({"rows": runs}))
    errors.main(tmp_path)
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("| data (trainings) | bu-torch | hold-out 25 % | 10 % |")
    rest = " 0.500 |" * 5 + " 0.010 | 30, 30 of 40 |"
    assert lines == [
        f"| tables, clean (2) | **0.250** |{rest}",
        f"| tables, wrong (2) | **0.400** |{rest}",
        f"| images, clean (1) | **0.500** |{rest.replace('0.500', '**0.500**')}",
        "| pretrained networks, clean (2) | **0.250** | 0.500 |  |  | 0.500 | 0.500 | 0.010 | 20, 20 of 20 |",
        "| pretrained networks, wrong (1) | **0.250** | 0.500 |  |  | 0.500 | 0.500 | 0.010 | 20, 20 of 20 |",
    ]
