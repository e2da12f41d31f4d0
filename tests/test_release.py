"""What a release says of itself is the same everywhere."""

import re
import tomllib
from itertools import chain
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import isentrope

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[1:]
PINNED = {canonicalize_name(r.name): r for r in map(Requirement, PINS)}


def test_the_citation_has_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == isentrope.__version__


def test_the_workflow_tests_every_python_that_is_promised():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    tested = workflow["jobs"]["run"]["strategy"]["matrix"]["python"]
    promised = re.findall(r":: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.M)
    assert tested == promised
    assert PROJECT["requires-python"] == f">={tested[0]}"


def test_every_dependency_is_pinned_within_its_range():
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for wanted in map(Requirement, chain.from_iterable(groups)):
        if wanted.name == PROJECT["name"]:
            continue
        (pin,) = PINNED[canonicalize_name(wanted.name)].specifier
        assert wanted.specifier.contains(pin.version), f"{wanted} is pinned to {pin.version}"


def test_every_pin_is_one_version():
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in PINS)
    assert len(PINNED) == len(PINS)


def test_every_test_that_the_makefile_names_exists():
    named = re.search(r"NUMERICAL := \$\(addprefix tests/,(.*?)\)", MAKEFILE, re.S)
    files = named[1].replace("\\", " ").split()
    assert len(files) > 5
    assert [file for file in files if not (ROOT / "tests" / file).exists()] == []
