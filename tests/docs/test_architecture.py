"""The map, the guide and the promises name what exists; the map has every package and floor."""

import re

import typer

from isentrope.cli.main import app
from tests.docs.pages import ROOT
from tests.golden.scenes import SCENES
from tests.test_layers import FLOORS

SOURCES = ROOT / "src" / "isentrope"
MAP, GUIDE = ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md"
PROMISES = ROOT / "SECURITY.md"
TEXTS = {page.name: page.read_text(encoding="utf-8") for page in (MAP, GUIDE, PROMISES)}
_SPAN = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"[\w.-]+(/[\w.-]+)*(/|\.(py|md|yml|yaml|txt|cff|toml))|\.ci/\w+")
_MADE = re.compile(r"build/|.*\bNAME\b|results\.json$|sweep\.parquet$")
"""Paths that commands make, or that stand for any file."""


def paths(text):
    """Paths in code spans."""
    return {p for p in _SPAN.findall(text) if _PATH.fullmatch(p) and not _MADE.match(p)}


def modules(text):
    """Dotted names of the package in code spans."""
    return {name for name in _SPAN.findall(text) if re.fullmatch(r"isentrope(\.\w+)+", name)}


def rows(text):
    """(package, its modules) of the table of packages."""
    table = text.partition("| package |")[2].partition("\n\n")[0]
    for line in table.splitlines():
        cells = [_SPAN.findall(cell) for cell in line.split("|")]
        if len(cells) > 3 and cells[1]:
            yield cells[1][0].rstrip("/"), cells[2]


def found(path):
    """Where it is: from the root, from the package, or anywhere among the tests."""
    places = [ROOT / path, SOURCES / path]
    places += (ROOT / "tests").rglob(path) if path.startswith("test_") else ()
    return [place for place in places if place.exists()]


EVERY_PATH = sorted((page, path) for page, text in TEXTS.items() for path in paths(text))
EVERY_MODULE = sorted(
    {(page, name) for page, text in TEXTS.items() for name in modules(text)}
    | {
        (MAP.name, f"isentrope.{package.replace('/', '.')}.{module}")
        for package, named in rows(TEXTS[MAP.name])
        for module in named
    }
)


def test_a_path_that_is_named_exists():
    assert [(page, path) for page, path in EVERY_PATH if not found(path)] == []


def is_module(name):
    path = SOURCES.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_a_module_that_is_named_exists():
    assert [(page, name) for page, name in EVERY_MODULE if not is_module(name)] == []


def test_every_package_has_its_line():
    packages = {
        str(init.parent.relative_to(SOURCES))
        for init in SOURCES.rglob("__init__.py")
        if init.parent != SOURCES
    }
    assert {package for package, _ in rows(TEXTS[MAP.name])} == packages


def test_the_floors_are_those_that_imports_are_held_to():
    drawn = re.findall(r"^ ?(\d+)   ((?:[\w.]+ *)+)$", TEXTS[MAP.name], re.M)
    floors = {int(number): set(names.split()) for number, names in drawn if number != "0"}
    assert floors == dict(enumerate(map(set, FLOORS[1:]), start=1))


def test_the_walks_have_every_step():
    assert all(f"\n{step}. " in TEXTS[MAP.name] for step in range(1, 9))


def test_every_command_of_the_guide_exists():
    lines = re.findall(r"^([a-z0-9][a-z0-9 -]*):(?!=)", (ROOT / "Makefile").read_text(), re.M)
    targets = {target for line in lines for target in line.split()}
    asked = set(re.findall(r"(?:^|`)make ([a-z-]+)", TEXTS[GUIDE.name], re.M))
    assert {"setup", "test", "lint", "coverage", "dist"} <= asked <= targets


def items(text):
    """The numbered items of a page, each with its continuation lines."""
    return re.findall(r"^\d+\. .*(?:\n   .*)*", text, re.M)


def constants(item):
    """The names in capitals, and the few functions, that an item says are in its files."""
    known = {
        "find_layers",
        "load_task",
        "in_test",
        "RunControl",
        "Tokens",
        "TokenRule",
        "TrainerFields",
    }
    spans = set(_SPAN.findall(item)) - {"NAME"}
    return {name for name in spans if name in known or re.fullmatch(r"_?[A-Z][A-Z_]+", name)}


def test_a_name_of_the_guide_is_in_a_file_beside_it():
    for item in items(TEXTS[GUIDE.name]):
        files = [file for path in paths(item) for file in found(path) if file.suffix == ".py"]
        files = [file for file in files if not file.name.startswith("test_")] or files
        held = "\n".join(file.read_text(encoding="utf-8") for file in files)
        missing = [name for name in constants(item) if not re.search(rf"\b{name}\b", held)]
        assert missing == [], item


def test_every_verb_has_a_golden_scene():
    verbs = set(typer.main.get_command(app).commands)  # pyright: ignore[reportAttributeAccessIssue]
    # They show what is there; `show` what other verbs printed, `view` the page of `report`.
    of_others = {"config", "show", "view"}
    cure = "COMMANDS in tests/golden/scenes.py, then python -m tests.golden.make NAME"
    assert verbs - of_others == set(SCENES) - {"study"}, cure


def test_what_does_not_exist_is_found():
    named = paths("`src/isentrope/vectros.py` and `policy/` and `test_vectros.py` and `x = 1`")
    assert {path for path in named if not found(path)} == {
        "src/isentrope/vectros.py",
        "test_vectros.py",
    }
