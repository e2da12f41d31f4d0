"""What does verification by manifests cost, in reading and in training?

    python -m validation.verification

A file of 0.25 GB and one of 1 GB are written to a temporary folder with a manifest. Plain reading
takes the bytes in pieces of 1 MiB; verification is `manifest.verify` in a process that has hashed
nothing yet. Both find the file in the page cache, so that the ratio is of work, not of the disk. In
training, a checkpoint gets its manifest every ten steps: the time of `files.write_manifest` on a
checkpoint of the tiny run, over the time of ten of its steps.

Writes docs/results/verification.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import textwrap
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np

from isentrope.system import manifest
from isentrope.system.files import write_manifest
from tests.golden.checkpoint import frozen_checkpoint
from tests.golden.scenes import COMMANDS, call
from validation.origin import write_results

PAGE = Path("docs/results/verification.md")
SIZES = (0.25, 1.0)
GB = 10**9
PIECE = 2**20
SAVE_EVERY = 10
SCALE = (
    "A larger checkpoint costs the seconds per GB of the table above, and its manifest is written "
    "once per save_every steps. Verification itself is part of loading, not of a step."
)
TARGETS = "Targets: less than 2 s per GB, and less than 1 % of a training step."


def median_seconds(work: Callable[[], object], times: int) -> float:
    """Median duration, after a first run that is not counted."""
    work()
    seconds = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def read_plainly(path: Path) -> None:
    """Read a file to its end."""
    with path.open("rb", buffering=0) as file:
        while file.read(PIECE):
            pass


def verify_anew(folder: Path) -> None:
    """Verify a folder as a process does that has hashed nothing yet."""
    manifest._known.clear()
    manifest.verify(folder)


def reading_row(folder: Path, gigabytes: float, times: int) -> str:
    """A row of the table of reading."""
    folder.mkdir()
    numbers, size = np.random.default_rng(0), round(gigabytes * GB)
    with (folder / "weights").open("wb") as file:
        for begin in range(0, size, 2**26):
            file.write(numbers.bytes(min(2**26, size - begin)))
    write_manifest(folder)
    plain = median_seconds(lambda: read_plainly(folder / "weights"), times) / gigabytes
    verified = median_seconds(lambda: verify_anew(folder), times) / gigabytes
    return f"| {gigabytes:g} | {plain:.2f} | {verified:.2f} | {verified / plain:.1f} |"


def training_row(folder: Path, times: int) -> str:
    """A row of the table of training."""
    tiny = frozen_checkpoint(folder / "tiny")
    command = COMMANDS["train"](tiny, folder)
    command.sections["training"] |= {"steps": 2 * SAVE_EVERY, "save_every": SAVE_EVERY}
    call(*command.arguments(folder, folder / "run"))
    lines = (folder / "run" / "logs" / "timing.jsonl").read_text().splitlines()
    seconds = [json.loads(line)["seconds"] for line in lines]
    checkpoint = folder / "run" / "training_state" / f"step_{SAVE_EVERY}"
    size = sum(p.stat().st_size for p in checkpoint.rglob("*") if p.is_file())
    writing = median_seconds(lambda: write_manifest(checkpoint), 10 * times)
    step = statistics.median(seconds)
    share = writing / (SAVE_EVERY * step)
    return f"| {size / 1e3:.0f} kB | {1e3 * writing:.1f} | {1e3 * step:.0f} | {share:.2%} |"


def page(reading: list[str], training: str) -> str:
    """docs/results/verification.md."""
    parts = (__doc__ or "").split("\n\n")
    return "\n".join(
        [
            "# Cost of verification",
            "",
            "`python -m validation.verification`",
            "",
            textwrap.fill(f"Written on {date.today()}, on one CPU core. {TARGETS}", 100),
            "",
            textwrap.fill(" ".join(parts[2].split()), 100),
            "",
            "| GB | plain reading, s per GB | verification, s per GB | ratio |",
            "|---|---|---|---|",
            *reading,
            "",
            f"| checkpoint | manifest, ms | step, ms | share at save_every={SAVE_EVERY} |",
            "|---|---|---|---|",
            training,
            "",
            textwrap.fill(SCALE, 100),
            "",
        ]
    )


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=5, help="repetitions (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        reading = [reading_row(here / f"{size}", size, options.times) for size in SIZES]
        training = training_row(here, options.times)
    text = page(reading, training)
    print(text)
    write_results(PAGE, text)


if __name__ == "__main__":
    main()
