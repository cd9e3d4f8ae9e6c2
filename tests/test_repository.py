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
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


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


def test_there_are_workflows_and_forms():
    assert [file.stem for file in WORKFLOWS] == ["release", "tests"]
    assert [file.stem for file in FORMS] == ["bug", "config", "idea", "result"]
    for file in FORMS[:1] + FORMS[2:]:
        form = yaml.safe_load(file.read_text())
        assert {field["type"] for field in form["body"]} == {"textarea"}


def test_the_changelog_and_the_citation_name_this_version():
    assert f"## [{bu_torch.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    said = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert said["version"] == bu_torch.__version__
    assert said["authors"] == [{"name": "The bu-torch authors"}]


def test_the_conda_recipe_says_what_pyproject_says():
    recipe = yaml.safe_load((ROOT / "conda" / "meta.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    said = project["project"]
    assert recipe["package"] == {"name": said["name"], "version": bu_torch.__version__}
    (command,) = recipe["build"]["entry_points"]
    assert dict([command.split(" = ")]) == said["scripts"]
    names = {"torch": "pytorch"}
    expected = [re.fullmatch(r"([\w-]+)(>=.*)", one).groups() for one in said["dependencies"]]
    run = [f"python {said['requires-python']}", *(f"{names.get(name, name)} {least}" for name, least in expected)]
    assert recipe["requirements"]["run"] == run
    (backend,) = project["build-system"]["requires"]
    assert recipe["requirements"]["host"] == [run[0], "pip", backend.replace(">=", " >=")]
    about = [recipe["about"][name] for name in ("summary", "license", "license_file")]
    assert about == [said[name] for name in ("description", "license", "license-files")]


@pytest.mark.parametrize(("tag", "is_right"), [(f"v{bu_torch.__version__}", True), ("v9.9", False), ("", False)])
def test_a_release_is_a_tag_that_equals_the_version(tag, is_right):
    result = subprocess.run(["make", "check-tag", f"TAG={tag}"], cwd=ROOT, capture_output=True, check=False)
    assert (result.returncode == 0) is is_right


@pytest.mark.parametrize("base", ["", "https://forge.example/group/bu-torch"])
def test_links_of_readme_are_relative_until_there_is_an_address(base):
    command, readme = ["make", "--silent", "readme", f"BASE_URL={base}"], (ROOT / "README.md").read_text()
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    if not base:
        assert shown == readme
        return
    assert len(re.findall(r"\]\((?!https:)", readme)) > 10
    assert not re.findall(r"\]\((?!https:)", shown)
    assert f"]({base}/raw/v{bu_torch.__version__}/docs/label_noise.png)" in shown
    assert f"]({base}/blob/v{bu_torch.__version__}/docs/limits.md#" in shown


def test_no_file_of_data_is_there_twice():
    files = [*ROOT.glob("examples/data/*.gz"), *ROOT.glob("benchmarks/data/**/*.gz")]
    contents = [file.read_bytes() for file in files]
    assert len(contents) == len(set(contents)) > 20
