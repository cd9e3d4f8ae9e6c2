"""What `mkdocs build` does beside building: the package as it is installed, and files from outside of `docs`."""

import atexit
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


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
    """Turn links that lead out of `docs`, as they must in the repository, to where their target is in the site."""
    up = "../" * page.file.src_uri.count("/")
    return re.sub(r"\]\((?:\.\./)+benchmarks/results/(\w[\w-]*\.png)\)", rf"]({up}results/\1)", markdown)
