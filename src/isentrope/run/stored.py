"""What lies in a folder that a verb wrote: results, an evaluation, or a run with both.

results.json                       one result
metrics.json                       the evaluation of one checkpoint
training_state, metrics.jsonl      a run of `isentrope train`; nothing of it is loaded
measurements/<verb>_<name>/        the results of a study
<verb>_<name>/, or <name>/         the same, and the checkpoints of an evaluation
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from isentrope.checkpoint.files import step_within
from isentrope.config.measure import repeat_of
from isentrope.results.result import Result
from isentrope.results.results import load_result
from isentrope.results.verbs import RESULTS, VERBS
from isentrope.run.evaluation_folder import EvaluationResult, StepFolder, finished
from isentrope.run.places import METRICS, measured_folders
from isentrope.training.run_files import RunFiles, readable_lines


@dataclass(frozen=True)
class Stored:
    """What a folder holds.

    Attributes:
        folder: The folder.
        results: What verbs found, by verb, and of each in the order of steps.
        evaluated: The checkpoints of an evaluation, by step.
        contents: What a run folder holds, in words, by kind; empty for other folders.
    """

    folder: Path
    results: list[Result] = field(default_factory=list)
    evaluated: list[EvaluationResult] = field(default_factory=list)
    contents: dict[str, str] = field(default_factory=dict)


def read_stored(folder: Path) -> Stored:
    """Read the results of a folder; of a run, look at what is there, and read none of it.

    Args:
        folder: That of a result, a study, an evaluation or a run.

    Returns:
        What it holds; nothing where it holds none of them.

    Raises:
        FileError: If a file of it was changed after it was written.
        ResultsError: If a file cannot be read.
    """
    if (folder / RESULTS).is_file():
        return Stored(folder, results=[load_result(folder)])
    if (folder / METRICS).is_file():
        evaluation = StepFolder(folder, {}).result()
        return Stored(folder, evaluated=[] if evaluation is None else [evaluation])
    run = RunFiles(folder)
    if run.checkpoints.is_dir() or run.metrics.is_file():
        return Stored(folder, contents=dict(_contents(run)))
    for place in (folder / "measurements", folder):
        if measured := measured_folders(place):
            return Stored(folder, results=sorted(map(load_result, measured), key=_place))
    is_evaluation = any(folder.glob(f"*/{METRICS}"))  # checkpoints have manifests too
    return Stored(folder, evaluated=finished(folder) if is_evaluation else [])


def _place(result: Result) -> tuple[int, int, str, int]:
    """By verb, step, name and update batch."""
    name = result.policy.name
    verb = [*VERBS].index(result.verb)
    return verb, step_within(name) or 0, name, repeat_of(result.provenance.seeds) or 0


def _contents(run: RunFiles) -> Iterator[tuple[str, str]]:
    """What a run folder holds, by kind, as far as names of files say it."""
    steps = run.steps()
    if steps:
        yield "checkpoints", f"{len(steps)}, step_{steps[0]} to step_{steps[-1]}"
    lines, damaged = readable_lines(run.metrics)
    if lines:
        lost = f", {len(damaged)} damaged lines" if damaged else ""
        yield "training log", f"{len(lines)} steps, to step {lines[-1][0]}{lost}"
    names = [path.name for path in measured_folders(run.folder / "measurements")]
    for verb in VERBS:
        measured = [name.removeprefix(f"{verb}_") for name in names if name.startswith(f"{verb}_")]
        if measured:
            yield verb, ", ".join(sorted(measured, key=lambda name: (step_within(name) or 0, name)))
    evaluated = sorted(file.parent.name for file in run.folder.glob(f"evaluation/*/{METRICS}"))
    if evaluated:
        yield "evaluation", ", ".join(sorted(evaluated, key=lambda x: (step_within(x) or 0, x)))
    if (run.folder / "report.html").is_file():
        yield "report", str(run.folder / "report.html")
