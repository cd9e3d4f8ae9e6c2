"""What a stranger runs first, run as it stands: the scripts in README and the notebook.

Each runs in an empty folder. Too long for the tests, so `.ci/run` calls it after them:

    python tests/front_door.py  # the scripts print what README says, the notebook runs
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "first_steps.ipynb"
ERROR = re.compile(r"^(.*): test error (0\.\d+)$", re.MULTILINE)
PAIR = """
from torch.utils.data import random_split

data, model = TensorDataset(x[:600], noisy[:600]), Digits()
"""  # what the comparison in README stands among


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def run(code: str) -> str:
    """Output of a script in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "script.py").write_text(code)
        how = {"cwd": folder, "env": {**os.environ, "MPLBACKEND": "agg"}, "timeout": 300}
        result = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=False, **how)
    if result.returncode:
        raise SystemExit(result.stdout + result.stderr)
    return result.stdout


def check_readme() -> None:
    """The quickstart prints what README says, and the comparison runs."""
    pair, script = blocks("python")
    promised = blocks("text")[0]
    output = run(script)
    print(output, end="")
    found, said = (dict(ERROR.findall(lines)) for lines in (output, promised))
    if not found.keys() == said.keys() or any(abs(float(found[name]) - float(said[name])) > 0.03 for name in said):
        raise SystemExit(f"README promises other figures:\n{promised}")
    run(script + PAIR + pair.replace("max_epochs=200", "max_epochs=2"))


def check_notebook() -> None:
    """The cells of code, one after another, as a script."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    print(run("\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")), end="")


if __name__ == "__main__":
    check_readme()
    if sys.argv[1:] != ["--readme"]:  # run what README shows alone
        check_notebook()
