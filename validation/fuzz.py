"""Damaged files: does every reader refuse them in a sentence, or read what was written?

    python -m validation.fuzz --cases 40000

The command line makes a run, measurements and an evaluation at the smallest size. Then each case
damages one file, calls the library's reader of it, and restores the file. First with manifests,
where all damage must be refused; then without them, as of a checkpoint made elsewhere, where only
structure can be checked. At last one bit is flipped at random places of every file of a checkpoint.

    refused       by an error of isentrope, or one that a line of isentrope raised
    equal         read, and what was read is the truth
    undetectable  read without a manifest: names, types and shapes are the truth's and all numbers
                  are finite, so that the values could be those of another run
    incomplete    read without a manifest: as above, and a name is missing or null that older files
                  lack
    silent        read, and different in another way; with a manifest, in any way
    foreign       an expected kind of error in the words of another library
    traceback     any other exception
    hang          not finished after 20 seconds

Writes docs/results/faults.md; the exit status is 1 after a traceback, a hang, or a silent case with
a manifest.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")

import transformers

from isentrope.system import manifest
from isentrope.system.errors import IsentropeError
from validation.fuzz_content import content_of, difference, within
from validation.fuzz_mutations import flipped, mutations
from validation.fuzz_page import PAGE, SECONDS, Row, page
from validation.fuzz_readers import Reader, make_world, readers, without_manifests
from validation.origin import write_results

EXPECTED = (ValueError, OSError, RuntimeError, ImportError)
FLIPS = 200
PLACES = ("deleted", "renamed", "duplicated", "exchanged", "swapped")
Damage = tuple[str, dict[str, bytes | None]]


class Hang(BaseException):
    """A reader did not finish."""


def damages(reader: Reader, rng: random.Random) -> Iterator[Damage]:
    """Damage without end: what was done, and the content of the files that differ."""
    originals = {name: (reader.folder / name).read_bytes() for name in reader.files}
    while True:
        name = rng.choice(reader.files)
        raw = originals[name]
        if rng.random() < 0.1:
            yield _moved_file(reader, name, originals, rng)
            continue
        mutation = rng.choice(mutations(name))
        damaged = mutation(raw, rng)
        if damaged is not None and damaged != raw:
            yield f"{name}: {mutation.__name__}", {name: damaged}


def _moved_file(
    reader: Reader, name: str, originals: dict[str, bytes], rng: random.Random
) -> Damage:
    """A file that is not where it was written."""
    raw, kind = originals[name], rng.choice(PLACES)
    other = rng.choice(reader.files)
    if kind == "exchanged" and originals[other] != raw:
        return f"{name}: exchanged with {other}", {name: originals[other], other: raw}
    strangers = [p for p in reader.folder.parent.glob(f"*/{name}") if p.read_bytes() != raw]
    if kind == "swapped" and strangers:
        stranger = rng.choice(strangers)
        return f"{name}: swapped with {stranger.parent.name}", {name: stranger.read_bytes()}
    if kind == "duplicated":
        return f"{name}: duplicated", {f"copy_{name}": raw}
    if kind == "renamed":
        return f"{name}: renamed", {name: None, f"old_{name}": raw}
    return f"{name}: deleted", {name: None}


class Damaged:
    """A folder with some files damaged, in the block."""

    def __init__(self, folder: Path, files: dict[str, bytes | None]) -> None:
        self._paths = {folder / name: content for name, content in files.items()}
        self._before = {p: p.read_bytes() if p.exists() else None for p in self._paths}

    def __enter__(self) -> None:
        _write(self._paths)

    def __exit__(self, *_: object) -> None:
        _write(self._before)


def _write(files: dict[Path, bytes | None]) -> None:
    for path, content in files.items():
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)


def outcome(reader: Reader, truth: Any, *, covered: bool) -> tuple[str, str]:
    """What a reader does: a kind, and the words of its error."""
    manifest._known.clear()  # as in a process of its own
    try:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        found = content_of(reader.read())
    except Hang:
        return "hang", ""
    except BaseException as error:  # a panic of a library in Rust is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return _kind(error), f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if found == truth:
        return "equal", ""
    words = difference(found[0], truth[0])
    if covered:
        return "silent", words
    if found[0] == truth[0]:
        return "undetectable", ""
    return ("incomplete" if within(found[0], truth[0]) else "silent"), words


def _kind(error: BaseException) -> str:
    if isinstance(error, IsentropeError):
        return "refused"
    if not isinstance(error, EXPECTED):
        return "traceback"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return "refused" if "isentrope" in Path(last.filename).parts else "foreign"


def fuzz(reader: Reader, cases: int, *, covered: bool, seed: int = 0) -> Row:
    """Many cases of one reader."""
    row = Row(reader.name)
    truth = content_of(reader.read())
    rng = random.Random(f"{reader.name}/{covered}/{seed}")
    for what, files in damages(reader, rng):
        if row.cases == cases:
            break
        with Damaged(reader.folder, files):
            kind, words = outcome(reader, truth, covered=covered)
        row.add(kind, f"{what} | {words}")
    if content_of(reader.read()) != truth:
        raise RuntimeError(f"{reader.name} does not read the restored files.")
    return row


def flip_every_file(checkpoint: Path, read: Any, times: int) -> Iterator[Row]:
    """One bit at random places of every file of a checkpoint."""
    rng = random.Random(1)
    for path in sorted(p for p in checkpoint.rglob("*") if p.is_file()):
        name = str(path.relative_to(checkpoint))
        row, raw = Row(name), path.read_bytes()
        reader = Reader(name, checkpoint, (name,), read, 0.0)
        for _ in range(times):
            with Damaged(checkpoint, {name: flipped(raw, rng)}):
                row.add(*outcome(reader, None, covered=True))
        yield row


def failures(tables: dict[str, list[Row]]) -> int:
    """Tracebacks, hangs, and silent cases with a manifest."""
    count = 0
    for part, rows in tables.items():
        kinds = ("traceback", "hang", *(("silent",) if part != "without" else ()))
        count += sum(row.counts[kind] for row in rows for kind in kinds)
    return count


def run(world: Path, cases: int, flips: int, only: str | None = None) -> dict[str, list[Row]]:
    """All tables."""
    every = [r for r in readers(world) if only is None or only in r.name]
    whole = sum(r.share * (1 + r.manifest) for r in every)
    tables: dict[str, list[Row]] = {"with": [], "without": [], "flips": []}
    checkpoint = world / "train" / "run" / "training_state" / "step_1"
    adapter = next((r for r in every if r.name == "adapter"), None)
    if adapter is not None:
        for row in flip_every_file(checkpoint, adapter.read, flips):
            tables["flips"].append(_told(row, "flips"))
    for part in ("with", "without"):
        if part == "without":
            without_manifests(world)
        for reader in every:
            if part == "without" or reader.manifest:
                share = max(1, round(cases * reader.share / whole))
                row = fuzz(reader, share, covered=part == "with")
                tables[part].append(_told(row, part))
    return tables


def _told(row: Row, part: str) -> Row:
    print(
        f"{part:8s} {row.name:30s} {dict(row.counts)}", f"{time.process_time():.0f} s", flush=True
    )
    for kind in ("silent", "foreign", "traceback", "hang"):
        for example in list(dict.fromkeys(row.examples.get(kind, ())))[:12]:
            print(f"    {kind} | {example}", flush=True)
    return row


def late(*_: object) -> None:
    """The alarm of a case."""
    raise Hang


def main() -> None:
    """Run all cases and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=40000, help="mutations (%(default)s)")
    parser.add_argument("--flips", type=int, default=FLIPS, help="bits per file (%(default)s)")
    parser.add_argument("--reader", help="only readers whose name holds this (all)")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    signal.signal(signal.SIGALRM, late)
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        world = make_world(Path(folder))
        logging.getLogger("isentrope").setLevel(logging.CRITICAL)
        tables = run(world, options.cases, options.flips, options.reader)
    if options.reader is None:
        text = page(tables, options.cases, time.process_time() - begun)
        write_results(PAGE, text)
    sys.exit(failures(tables) > 0)


if __name__ == "__main__":
    main()
