"""The files around the code agree with it: workflows, citation, make targets, data."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import bu_torch

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_pin_their_actions_and_call_the_makefile(file):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in re.findall(r"uses: (.*)", file.read_text()):
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", line), line
    made = yaml.safe_load(file.read_text())
    assert made["permissions"] == {"contents": "read"}
    steps = [step for job in made["jobs"].values() for step in job["steps"] if "run" in step]
    assert steps
    for step in steps:
        command, target, *_ = step["run"].split()
        assert (command, target in targets) == ("make", True), step


def test_changelog_citation_and_conda_recipe_say_what_pyproject_says():
    assert f"## [{bu_torch.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == bu_torch.__version__
    recipe = yaml.safe_load((ROOT / "conda" / "meta.yaml").read_text())
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert recipe["package"] == {"name": said["name"], "version": bu_torch.__version__}
    assert [" = ".join(pair) for pair in said["scripts"].items()] == recipe["build"]["entry_points"]
    needed = [re.fullmatch(r"([\w-]+)(>=.*)", one).groups() for one in said["dependencies"]]
    needed = [f"{'pytorch' if name == 'torch' else name} {least}" for name, least in needed]
    assert recipe["requirements"]["run"] == [f"python {said['requires-python']}", *needed]
    assert [recipe["about"][name] for name in ("summary", "license")] == [said["description"], said["license"]]


@pytest.mark.parametrize(("tag", "is_right"), [(f"v{bu_torch.__version__}", True), ("v9.9", False), ("", False)])
def test_a_release_is_a_tag_that_equals_the_version(tag, is_right):
    result = subprocess.run(["make", "check-tag", f"TAG={tag}"], cwd=ROOT, capture_output=True, check=False)
    assert (result.returncode == 0) is is_right
