"""Every verb writes the files, keys and numbers that it wrote before (python -m tests.golden.make).

Float64 verbs agree to 1e-6 on every CPU that was tried; trainers run in float32 and agree to 1e-3.
The demo trains for many steps, after which two CPUs hold different weights: its numbers are
compared where the fine-tuned weights are those of the golden file, its files and keys everywhere.
"""

import copy
import json

import pytest

from isentrope.cli.console import out
from tests.golden.checkpoint import frozen_checkpoint
from tests.golden.compare import differences, structure
from tests.golden.make import WIDTH, file_of, printed_file_of
from tests.golden.printed import changed_lines
from tests.golden.scenes import SCENES

TRAINED = ("train", "sft")
SLOW = ("study", "report")
SCREEN = 25
"""Lines of what a verb prints at most, without `--details`."""


@pytest.fixture(scope="session")
def frozen(tmp_path_factory):
    """The tiny checkpoint, with the same tensors on every machine."""
    return frozen_checkpoint(tmp_path_factory.mktemp("frozen"))


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """A terminal of 80 columns: `scenes.call` refuses a table that is cut."""
    monkeypatch.setattr(out, "width", WIDTH)


def expected(name):
    return json.loads(file_of(name).read_text(encoding="utf-8"))


def apart(name, found):
    relative, absolute = (1e-3, 1e-5) if name in TRAINED else (1e-6, 1e-12)
    return differences(expected(name), found, relative=relative, absolute=absolute)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in SCENES if n != "demo"],
)
def test_a_verb_writes_what_it_wrote(name, frozen, tmp_path):
    if name in TRAINED:
        pytest.importorskip("trl")
    found = json.loads(json.dumps(SCENES[name](frozen, tmp_path)))
    printed, screen = found.pop("printed", []), found.pop("screen", [])
    assert sum(max(1, -(-len(line) // WIDTH)) for line in screen) <= SCREEN
    cure = f"if the change is meant: python -m tests.golden.make {name}, and read its diff"
    assert apart(name, found) == [], cure
    if printed:
        before = printed_file_of(name).read_text(encoding="utf-8").splitlines()
        assert changed_lines(before, printed) == [], cure


@pytest.mark.slow
def test_the_demo_writes_what_it_wrote(tmp_path):
    pytest.importorskip("trl")
    before, found = expected("demo"), json.loads(json.dumps(SCENES["demo"](None, tmp_path)))
    assert differences(structure(before), structure(found), relative=0, absolute=0) == []
    if found["values"]["weights"] == before["values"]["weights"]:
        assert apart("demo", found) == []


def test_every_kind_of_change_is_seen():
    before = expected("influence")
    folder = "measurements/influence_step_4"
    total = ("values", f"{folder}/results.json", "entropy.total", "value")
    column = ("tables", f"{folder}/tokens.parquet", "delta_h", "ramp")
    changes = {
        total: 1.00001 * look(before, total),
        column: look(before, column) + 1e-5 * look(before, (*column[:-1], "size")),
        (*column[:2], "(rows)"): 3,
        (*total[:3], "unit"): "bits",
        ("files",): [*before["files"], "another"],
    }
    for path, value in changes.items():
        after = copy.deepcopy(before)
        look(after, path[:-1])[path[-1]] = value
        (said,) = apart("influence", after)
        assert "/".join(path) in said
    after = copy.deepcopy(before)
    del look(after, total[:-1])[total[-1]]
    assert apart("influence", after) == [f"/{'/'.join(total)} is gone"]


def test_rounding_is_not_a_change():
    before = expected("influence")
    after = copy.deepcopy(before)
    of = after["values"]["measurements/influence_step_4/results.json"]["entropy.total"]
    of["value"] *= 1 + 1e-8
    assert apart("influence", after) == []


def test_a_changed_word_or_digit_of_printed_text_is_seen():
    before = ["  0.01   -0.0123 ± 0.002   trust"]
    assert changed_lines(before, ["  0.01   -0.0124 ± 0.002   trust"]) == []
    for line in ("  0.01   -0.0133 ± 0.002   trust", "  0.01   -0.0123 ± 0.002   smooth"):
        assert changed_lines(before, [line]) != []
    assert changed_lines(before, []) != []


def look(record, path):
    for key in path:
        record = record[key]
    return record
