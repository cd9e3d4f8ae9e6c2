"""What a stranger runs first, run as it stands: scripts in README, `examples/hold_out.py` and the notebook.

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
HOLD_OUT = ROOT / "examples" / "hold_out.py"
ERROR = re.compile(r"^test error of (.*): (0\.\d+)$", re.MULTILINE)
PAIR = """
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import random_split

class Watched(Digits):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

data, model = TensorDataset(x[:600], noisy[:600]), Watched()
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
    output = run(script).splitlines()[-1]
    print(output)
    found, said = (float(line.rsplit(maxsplit=1)[1]) for line in (output, promised.splitlines()[-1]))
    if abs(found - said) > 0.03:
        raise SystemExit(f"README promises another figure:\n{promised}")
    run(script + PAIR + pair.replace("max_epochs=200", "max_epochs=2"))


def check_hold_out() -> None:
    """The comparison has the errors that README says."""
    output = run(HOLD_OUT.read_text())
    print(output, end="")
    said = re.search(r"test\s+error is (0\.\d+).*?(0\.\d+).*?(0\.\d+)", (ROOT / "README.md").read_text(), re.DOTALL)
    found = [float(error) for _, error in ERROR.findall(output)]
    if said is None or any(abs(one - float(other)) > 0.03 for one, other in zip(found, said.groups(), strict=True)):
        raise SystemExit("README promises other errors.")


def check_notebook() -> None:
    """The cells of code, one after another, as a script."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    print(run("\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")), end="")


if __name__ == "__main__":
    check_readme()
    if sys.argv[1:] != ["--readme"]:  # run what README shows alone
        check_hold_out()
        check_notebook()
