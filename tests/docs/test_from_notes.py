"""The table of the notes' names: each name of ours exists, and each refused key is a row."""

import re

import isentrope
from isentrope.cli.commands import COMMANDS
from isentrope.config.keys import all_keys
from isentrope.config.measure import ELSEWHERE, MeasureConfig
from isentrope.config.train import TrainConfig
from tests.docs.pages import ROOT

TEXT = (ROOT / "docs" / "from_notes.md").read_text(encoding="utf-8")
ROWS = [line.split("|")[1:3] for line in TEXT.splitlines() if re.match(r"\| (?!name|-)", line)]
KEYS = {*all_keys(MeasureConfig), *all_keys(TrainConfig)}
NAMES = {*KEYS, *(f"ise.{name}" for name in isentrope.__all__)}
NAMES |= {f"isentrope {verb.name}" for verb in COMMANDS}
NAMES |= {"surprisal", "prefix", "doubly-robust"}  # estimators
NAMES |= {f"isentrope {command}" for command in ("check CHECKPOINT --replay",)}


def spans(cell):
    return re.findall(r"`([^`]+)`", cell)


def unknown(cell):
    return [name for name in spans(cell) if name not in NAMES]


def test_every_name_on_the_right_exists():
    assert len(ROWS) > 25
    assert [name for _, here in ROWS for name in unknown(here)] == []
    assert unknown("`ise.no_such` `batch_config.B_X`") == ["ise.no_such", "batch_config.B_X"]


def test_every_refused_key_is_a_row():
    rows = {name for left, _ in ROWS for name in spans(left)}
    assert {*ELSEWHERE} <= rows


def test_the_same_keys_of_a_section_are_keys_of_it():
    for left, here in ROWS:
        if section := re.search(r"the same keys of `(\w+)`", here):
            names = [name.split(".")[-1] for name in spans(left)]
            for name in set(names) - {"*"}:
                aliases = {"use_simple_entropy_for_x"}
                assert f"{section[1]}.{name}" in KEYS or name in aliases
