"""What a stranger runs first, run as it stands: the script in README and the notebook, each in an empty folder.

Too long for the tests, so `.ci/run` calls it after them:

    python tests/front_door.py            # the script prints what README says, the notebook runs
    python tests/front_door.py --seeds 5  # test errors of README's script for several seeds
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "first_steps.ipynb"
ERROR = re.compile(r"^test error of (.*): (0\.\d+)$", re.MULTILINE)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def run(code: str) -> str:
    """Output of a script in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "script.py").write_text(code)
        command = [sys.executable, "script.py"]
        result = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env={**os.environ, "MPLBACKEND": "agg"},
        )
    if result.returncode:
        raise SystemExit(result.stdout + result.stderr)
    return result.stdout


def errors(output: str) -> dict[str, float]:
    return {name: float(error) for name, error in ERROR.findall(output)}


def check_readme() -> None:
    (script,) = blocks("python")
    (promised,) = (block for block in blocks("text") if ERROR.search(block))
    output = run(script)
    print(output, end="")
    found, said = errors(output), errors(promised)
    if list(found) != list(said) or any(abs(found[name] - said[name]) > 0.03 for name in said):
        raise SystemExit(f"README promises other figures:\n{promised}")


def check_notebook() -> None:
    """The cells of code, one after another, as a script."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    print(run("\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")), end="")


def compare_seeds(n_seeds: int) -> None:
    (script,) = blocks("python")
    found = [errors(run(script.replace("SEED = 0", f"SEED = {seed}"))) for seed in range(n_seeds)]
    for name in found[0]:
        values = [one[name] for one in found]
        print(f"{name}: " + " ".join(f"{value:.3f}" for value in values) + f", mean {sum(values) / n_seeds:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readme", action="store_true", help="run the script in README alone")
    parser.add_argument("--seeds", type=int, help="errors of README's script for so many seeds")
    options = parser.parse_args()
    if options.seeds:
        compare_seeds(options.seeds)
    else:
        check_readme()
        if not options.readme:
            check_notebook()
