"""Digests of the tables of rollouts that a run writes, beside which no manifest stands.

    logs/rollouts.jsonl    {"step": 3, "sha256": "9f…"}, one line per table

No number of a run depends on a table, and tables may be removed to make room: a changed or missing
one is named, and the run goes on. Tables of earlier versions have no digest.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from isentrope.checkpoint.files import step_name, written_step
from isentrope.system.files import append_line, sha256_of_file, write_file
from isentrope.system.reading import parse_json
from isentrope.training.run_files import RunFiles, readable_lines

_MOST_NAMED = 3
"""Tables that a sentence names; of more it gives the number."""


def write_rollouts(files: RunFiles, step: int, write: Callable[[Path], object]) -> None:
    """Write the table of a step, then the line with its digest.

    Args:
        files: The run's.
        step: The step.
        write: Called with the path to write the table to.
    """
    path = write_file(files.rollouts / f"{step_name(step)}.parquet", write)
    append_line(files.digests, json.dumps({"step": step, "sha256": sha256_of_file(path)}))


def rollout_faults(files: RunFiles, last: int | None = None) -> Iterator[str]:
    """Sentences on tables that are not as they were written.

    Args:
        files: The run's.
        last: The last step that is looked at; None for all.

    Yields:
        One on tables that were changed, exchanged or removed, and one on those of which it is not
        known.
    """
    lines, damaged = readable_lines(files.digests)
    recorded = {step: parse_json(text) for step, text in lines}
    if last is not None:
        recorded = {step: line for step, line in recorded.items() if step <= last}
    faults = []
    for step, line in recorded.items():
        path = files.rollouts / f"{step_name(step)}.parquet"
        if not path.is_file():
            faults.append(f"{path.name} is missing")
            continue
        digest = sha256_of_file(path)
        if digest == line.get("sha256"):
            continue
        exchanged = [k for k, entry in recorded.items() if entry.get("sha256") == digest]
        if exchanged:
            faults.append(f"{path.name} holds the table of step {exchanged[0]}")
        else:
            faults.append(f"{path.name} was changed after it was written")
    if faults:
        more = f", and {len(faults) - _MOST_NAMED} more" if len(faults) > _MOST_NAMED else ""
        examples = ", ".join(faults[:_MOST_NAMED])
        yield f"In {files.rollouts}, {examples}{more}: do not use these tables."
    written = {written_step(path.stem) for path in files.rollouts.glob("step_*.parquet")}
    without_digest = [
        step
        for step in written - recorded.keys()
        if step is not None and (last is None or step <= last)
    ]
    if without_digest:
        damage = f" (line {damaged[0]} of {files.digests} is damaged)" if damaged else ""
        yield (
            f"{len(without_digest)} tables in {files.rollouts} have no digest in "
            f"{files.digests.name}{damage}, so it is not known whether they were changed."
        )
