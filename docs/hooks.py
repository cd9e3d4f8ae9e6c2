"""What `mkdocs build` does beside building: the package as it is installed, and files from outside of `docs`.

A forge shows the pages as they are, so that they hold links where the site has scripts and docstrings.
"""

import atexit
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
WITHOUT_MEMBERS = {  # whose methods are hooks, or need no words
    "BoundaryUncertaintyStopping",
    "BoundaryUncertaintyMonitor",
    "Settings",
}


@event_priority(100)  # before mkdocstrings reads where to look
def on_config(config: Any) -> Any:
    """Lay out the package with the callbacks in their place, as an installation does."""
    tree = Path(tempfile.mkdtemp(prefix="bu-torch-docs-"))
    atexit.register(shutil.rmtree, tree, ignore_errors=True)
    skip = shutil.ignore_patterns("__pycache__", "callbacks")
    shutil.copytree(ROOT / "bu_torch", tree / "bu_torch", ignore=skip)
    shutil.copytree(ROOT / "callbacks", tree / "bu_torch" / "callbacks", ignore=skip)
    config.plugins["mkdocstrings"].config["handlers"].setdefault("python", {})["paths"] = [str(tree)]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the figures of the benchmarks, which lie beside their numbers."""
    for figure in sorted(RESULTS.glob("*.png")):
        files.append(File.generated(config, f"results/{figure.name}", content=figure.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put scripts and docstrings in the place of the links to them, and lead links to figures to where they are."""
    up = "../" * page.file.src_uri.count("/")
    markdown = re.sub(r"^\[(examples/recipes/[\w.]+)\]\(.*\)$", _script, markdown, flags=re.MULTILINE)
    markdown = re.sub(r"^- \[`(bu_torch[\w.]+)`\]\((.*)\)$", _docstring, markdown, flags=re.MULTILINE)
    return re.sub(r"\]\((?:\.\./)+benchmarks/results/(\w[\w-]*\.png)\)", rf"]({up}results/\1)", markdown)


def _script(found: re.Match[str]) -> str:
    kind = "python" if found[1].endswith(".py") else "yaml"
    return f'``` {{ .{kind} title="{found[1]}" }}\n{(ROOT / found[1]).read_text()}```'


def _docstring(found: re.Match[str]) -> str:
    whole, name = found[1], found[1].rpartition(".")[2]
    if whole.startswith("bu_torch.functional.") and "/papers/" in found[2]:  # found there when it is asked for
        whole = f"bu_torch.papers.{Path(found[2]).stem}.{name}"
    inherited = name in ("BoundaryUncertainty", "ParzenUncertainty")
    options = {"members": []} if name in WITHOUT_MEMBERS else {"inherited_members": inherited}
    return f"\n::: {whole}\n    options: {json.dumps(options)}\n"
