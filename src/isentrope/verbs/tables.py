"""What verbs print that measure nothing: findings of `check`, evaluations and plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial

from isentrope.checks import Finding
from isentrope.checks.sampler import DERIVATIVES
from isentrope.nouns.columns import Column
from isentrope.nouns.estimate import Estimate
from isentrope.planning.plan import Plan
from isentrope.results.answers.blocks import Printed, Table
from isentrope.results.answers.evaluate import evaluation_sentence
from isentrope.run.evaluation_folder import EvaluationResult
from isentrope.system.formatting import MISSING, TERMINAL, gigabytes, known, sizes_in_words

MARKS = {True: "ok", False: "FAIL", None: "-"}


def printed_findings(by_checkpoint: Mapping[str, Sequence[Finding]], *, details: bool) -> Printed:
    """A table per checkpoint; without details the number of the checks that passed, and the rest.

    What failed comes first, so that the first screen has it, and so do checkpoints in which it did.
    What is withheld of every result comes next.

    Args:
        by_checkpoint: Findings by the name of their checkpoint.
        details: Whether checks that passed have rows too.

    Yields:
        Tables and lines.
    """
    columns = (
        Column("", lambda finding: MARKS[finding.passed], left=True),
        Column("check", "name", left=True),
        Column(
            "what was seen, and what to do",
            lambda finding: f"{finding.detail}\n{finding.advice}".strip(),
            left=True,
        ),
    )
    failing = {
        name: sum(finding.passed is False for finding in findings)
        for name, findings in by_checkpoint.items()
    }
    for name in sorted(by_checkpoint, key=lambda name: not failing[name]):
        findings = by_checkpoint[name]
        rows = [finding for finding in findings if details or not finding.passed]
        rows.sort(key=lambda finding: (finding.passed is not False, finding.name != DERIVATIVES))
        if len(rows) < len(findings):
            yield f"{name}: {_counts(findings)}; --details says what each has seen."
        if rows:
            yield Table(name, rows, columns)


def _counts(findings: Sequence[Finding]) -> str:
    """How many checks passed, failed, and could not be run, with advice or as they do not apply."""
    undecided = [finding for finding in findings if finding.passed is None]
    advised = sum(bool(finding.advice) for finding in undecided)
    apart = len(undecided) - advised
    counts = (
        (sum(finding.passed is False for finding in findings), "failed"),
        (advised, "could not be decided"),
        (apart, "does not apply" if apart == 1 else "do not apply"),
    )
    passed = sum(finding.passed is True for finding in findings)
    return ", ".join([f"{passed} checks passed", *(f"{n} {words}" for n, words in counts if n)])


COLUMNS = {
    "reward": "reward",
    "format": "format",
    "unread": "unread",
    "response_length": "length",
    "truncated": "cut",
    "entropy_per_sequence": "ℋ",
    "entropy_per_token": "h",
    "forking_entropy": "forking h",
}
"""Metrics on the screen besides pass@k; the rest is in the file."""

_RANKS = {"entropy_per_token": 1, "response_length": 2, "reward": 2}
"""What is kept before the others besides the first metric; those come by their order."""


def printed_evaluation(results: Sequence[EvaluationResult]) -> Printed:
    """What went from what to what, the table of an evaluation, and what limits its numbers."""
    sampled = [
        (result.checkpoint, row.metrics)
        for result in results
        for row in result.rows
        if row.decoding == "sampled" and row.group is None
    ]
    if sampled:
        yield from evaluation_sentence(sampled)
    yield evaluation_table(results)
    limited: dict[str, dict[str, None]] = {}  # by sentence, the names of what it limits, in order
    for row in (row for result in results for row in result.rows):
        for name, estimate in row.metrics.items():
            for sentence in estimate.warnings if estimate else ():
                limited.setdefault(sentence, {})[name] = None
    for sentence, names in limited.items():
        yield f"  note  {', '.join(names)}: {sentence}"


def evaluation_table(results: Sequence[EvaluationResult]) -> Table:
    """A row per checkpoint and decoding, with the metrics that have a value somewhere."""
    pairs = [(result.checkpoint, row) for result in results for row in result.rows]
    first = pairs[0][1]
    names = [name for name, estimate in first.metrics.items() if estimate]
    passes = [name for name in names if name.startswith("pass_at_")]
    shown = {name: name.replace("_at_", "@") for name in passes[:1] + passes[1:][-1:]}
    shown |= {name: title for name, title in COLUMNS.items() if name in names}
    metrics = [row.metrics for _, row in pairs]
    if all(_value(row.get("reward")) == _value(row.get("pass_at_1")) for row in metrics):
        shown.pop("reward", None)  # right or wrong, and nothing else
    title = (
        f"{results[0].dataset}, {results[0].split}: {first.n_prompts} prompts, "
        "± standard error; ℋ and h in nats per sequence and per token"
    )
    columns = [Column("checkpoint", "checkpoint", left=True)]
    columns.append(Column("decoding", "decoding", left=True))
    if any(row.group for _, row in pairs):
        columns += [Column("group", "group", left=True), Column("prompts", "n_prompts", 1)]
    columns += [
        Column(heading, name, _RANKS.get(name, k))
        for k, (name, heading) in enumerate(shown.items())
    ]
    rows = [
        {**vars(row), "checkpoint": checkpoint}
        | {name: _measured(estimate) for name, estimate in row.metrics.items()}
        for checkpoint, row in pairs
    ]
    return Table(title, rows, columns)


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else known(estimate.value)


def _measured(estimate: Estimate | None) -> str:
    if estimate is None:
        return MISSING
    return TERMINAL.with_error(known(estimate.value), known(estimate.se)).replace(" ± ", "±")


SOURCES = (
    "Bytes are by shapes, no weights were loaded: activations are about the most, with all scores "
    "of attention, and on a CPU 1.8 times their tensors, since its heap keeps free blocks; "
    "libraries are what this process holds, or about 0.5 GB of a CUDA device. Passes of checks "
    "that read a few sequences are not counted."
)


def described_plans(plans: Sequence[Plan]) -> list[dict[str, object]]:
    """The plans as JSON has them."""
    return [_describe_plan(plan) for plan in plans]


def too_large(plans: Sequence[Plan]) -> list[str]:
    """Which plans do not fit, and what would."""
    return [
        f"{plan.verb} of {plan.checkpoint} does not fit: it takes {gigabytes(plan.peak)}, and "
        f"there are {gigabytes(plan.memory)}. {plan.cure}"
        for plan in plans
        if not plan.fits
    ]


_PARTS = (
    Column("part", "name", left=True),
    Column("batch", "batch", left=True),
    Column("responses", lambda part: f"{part.responses:,}", 1),
    *(
        Column(title, partial(lambda index, part: part.passes[index] or "", index))
        for index, title in enumerate(("forward", "backward", "forward-mode", "second order"))
    ),
    Column("above what is held", lambda part: gigabytes(part.bytes), 2),
)


def printed_plans(plans: Sequence[Plan]) -> Printed:
    """What fits, a table per plan, and one of all where there are several."""
    if plans:
        largest = max(plans, key=lambda plan: plan.peak)
        fitting = sum(plan.fits for plan in plans)
        fit = "All of it fits" if fitting == len(plans) else f"{fitting} of {len(plans)} verbs fit"
        yield (
            f"{fit} into {gigabytes(largest.memory)}: {largest.verb} takes most, "
            f"{gigabytes(largest.peak)}; its time is {_time(largest.seconds)}."
        )
        if not any(plan.seconds for plan in plans):
            yield "Times are those of an earlier run: name it by --set output.directory=RUN."
    if len(plans) > 1:
        verbs = (
            Column("verb", "verb", left=True),
            Column("memory", lambda plan: gigabytes(plan.peak)),
            Column("time", lambda plan: _time(plan.seconds)),
        )
        yield Table(f"Verbs of {plans[0].checkpoint}", plans, verbs)
    for plan in plans:
        yield Table(f"{plan.verb} of {plan.checkpoint}: passes", plan.parts, _PARTS)
        for batch in plan.batches:
            source = "drawn" if batch.file is None else f"read from {batch.file}"
            yield (
                f"  {batch.name:<8}{batch.responses:,} responses {source}, {batch.tokens:,} tokens "
                "of response at most"
            )
        yield f"  held    {sizes_in_words(plan.held)}"
        if plan.largest is not None:
            yield f"  largest {plan.largest.name}: {sizes_in_words(plan.largest.memory)}"
        if plan.compared:
            yield f"  before  derivatives are compared: {sizes_in_words(plan.compared)}"
        yield (
            f"  peak    {gigabytes(plan.peak)}, with {gigabytes(plan.libraries)} for libraries, "
            f"of {gigabytes(plan.memory)}"
        )
        stages = ", ".join(f"{stage} {_time({stage: x})}" for stage, x in plan.seconds.items())
        yield f"  time    {_time(plan.seconds)}{f' ({stages})' if len(plan.seconds) > 1 else ''}"
        for sentence in (plan.measured_by, *plan.assumptions):
            yield f"  {sentence}"


def _time(seconds: Mapping[str, float]) -> str:
    if not seconds:
        return "unknown"
    total = sum(seconds.values())
    if total < 1:
        return "< 1 s"
    return f"{total:.0f} s" if total < 120 else f"{total / 60:.0f} min"


def _describe_plan(plan: Plan) -> dict[str, object]:
    content: dict[str, object] = asdict(plan)
    for key, terms in {"held": plan.held, "compared": plan.compared}.items():
        content[key] = [{"name": name, "size": size} for name, size in terms.items()]
    content |= {"peak": plan.peak, "fits": plan.fits}
    content["cure"] = None if plan.fits else plan.cure
    return content
