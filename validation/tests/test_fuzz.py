"""Every reader of the fuzz test takes a few cases, and damage is told from what was written."""

import random
import signal

import pytest

from validation import fuzz, verification
from validation.fuzz_content import content_of, within
from validation.fuzz_page import page
from validation.fuzz_readers import Reader, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), ("measure", "evaluate", "train"))


def test_every_reader_refuses_damage_in_a_sentence(world):
    previous = signal.signal(signal.SIGALRM, fuzz.late)
    try:
        tables = fuzz.run(world, cases=1, flips=1)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert fuzz.failures(tables) == 0
    assert all(row.cases >= 1 for rows in tables.values() for row in rows)
    assert {row.counts["refused"] for row in tables["flips"]} == {1}
    assert "| **all** |" in page(tables, cases=1, seconds=60)


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        ({"a": [1.0, 2.0], "b": "x"}, "equal"),
        ({"a": [1.0, 3.0], "b": "x"}, "undetectable"),
        ({"a": [1.0], "b": "x"}, "undetectable"),
        ({"a": [1.0, 2.0]}, "incomplete"),
        ({"a": [1.0, 2.0], "b": 1}, "silent"),
        ({"a": [1.0, 2.0], "b": "x", "c": 1}, "silent"),
        (OSError("x"), "foreign"),
        (KeyError("x"), "traceback"),
    ],
)
def test_outcomes_are_told_apart(tmp_path, found, kind):
    def read():
        if isinstance(found, Exception):
            raise found
        return found

    truth = content_of({"a": [1.0, 2.0], "b": "x"})
    reader = Reader("name", tmp_path, (), read, 1.0)
    assert fuzz.outcome(reader, truth, covered=False)[0] == kind
    silent = "silent" if kind in ("undetectable", "incomplete") else kind
    assert fuzz.outcome(reader, truth, covered=True)[0] == silent


def test_damage_is_never_the_original(world):
    path = world / "train" / "run" / "training_state" / "step_2"
    names = tuple(p.name for p in path.iterdir() if p.is_file())
    reader = Reader("name", path, names, lambda: None, 1.0)
    originals = {name: (path / name).read_bytes() for name in names}
    damages = fuzz.damages(reader, random.Random(0))
    for _, files in (next(damages) for _ in range(100)):
        assert any(originals.get(name) != content for name, content in files.items())


def test_a_null_stands_for_what_was_withheld():
    assert within(content_of([float("nan")])[0], content_of([1.0])[0])
    assert not within(content_of([1.0])[0], content_of([float("nan")])[0])


def test_the_cost_of_verification_has_its_rows(tmp_path):
    row = verification.reading_row(tmp_path / "folder", gigabytes=0.001, times=1)
    assert row.startswith("| 0.001 | ")
    assert "| GB |" in verification.page([row], "| 1 | 2 | 3 | 4 |")
