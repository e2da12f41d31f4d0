"""The table of verbs: options, pipeline function, printer and help of each.

Functions are given by dotted names and imported when their verb is called, so that `--version` and
`--help` load no torch. A new verb is a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import typer

from isentrope._lazy import load
from isentrope.cli import options
from isentrope.cli.interrupts import stopped_by_signals


@dataclass(frozen=True)
class Verb:
    """A row of the table.

    Attributes:
        name: As on the command line, and in names of folders.
        options: Takes the options of the command line, and returns what is asked.
        through: Dotted name; called with the row and what is asked: runs, then prints.
        run: Dotted name of the pipeline function.
        show: Dotted name of what prints its results.
        help: A sentence.
        kept: What a signal leaves of its work, and how to go on.
    """

    name: str
    options: Callable[..., options.Asked]
    through: str
    run: str
    show: str
    help: str
    kept: str = "Nothing is kept of what was not finished: run the same command again."


_PIPELINES, _TABLES = "isentrope.verbs", "isentrope.cli.attribution_tables"

VERBS = (
    Verb(
        "demo",
        options.demonstrated,
        through="isentrope.cli.running:demonstrating",
        run="isentrope.cli.demo:demo",
        show="isentrope.cli.demo:print_verdict",
        help="Train a toy policy, see its entropy fall, and find out which tokens do it.",
        kept="What was finished is kept. Run it again with another --out.",
    ),
    Verb(
        "sft",
        options.fine_tuned,
        through="isentrope.cli.running:fine_tuning",
        run=f"{_PIPELINES}.sft:sft",
        show="isentrope.cli.running:print_fine_tuned",
        help="Fine-tune a model on a task's demonstrations, loss on the response alone; or resume "
        "a run.",
    ),
    Verb(
        "train",
        options.trained,
        through="isentrope.cli.running:training",
        run=f"{_PIPELINES}.train:train",
        show="isentrope.cli.console:say_written",
        help="Train a policy by Dr. GRPO, leaving checkpoints that can be measured; or resume "
        "a run.",
        kept="No step of training is lost, since none was begun: run the same command again.",
    ),
    Verb(
        "branch",
        options.branched,
        through="isentrope.cli.running:branching",
        run=f"{_PIPELINES}.branch:branch_study",
        show="isentrope.cli.branch_table:print_branches",
        help="Train on for a few steps from checkpoints of a run, with settings changed and "
        "repeated, and compare what they did to entropy and reward.",
        kept="No branch was begun: run the same command again.",
    ),
    Verb(
        "evaluate",
        options.evaluated,
        through="isentrope.cli.running:evaluating",
        run=f"{_PIPELINES}.evaluate:evaluate_checkpoints",
        show="isentrope.cli.evaluation_table:print_evaluation",
        help="Evaluate checkpoints on a task: pass@k, lengths, format, entropy; a restart goes on.",
        kept="Finished chunks of prompts are kept: run the same command again to go on.",
    ),
    Verb(
        "measure",
        options.measured,
        through="isentrope.cli.running:measuring",
        run=f"{_PIPELINES}.measure:measure",
        show="isentrope.cli.tables:print_measurement",
        help="Measure how much one optimizer step changes the entropy of a checkpoint, or of a "
        "list.",
    ),
    Verb(
        "influence",
        options.measured,
        through="isentrope.cli.running:attributing",
        run=f"{_PIPELINES}.influence:find_influence",
        show=f"{_TABLES}:print_influence",
        help="Attribute the entropy change of a step to the sequences and tokens of its batch.",
    ),
    Verb(
        "kernel",
        options.measured,
        through="isentrope.cli.running:attributing",
        run=f"{_PIPELINES}.kernel:find_kernel",
        show="isentrope.cli.kernel_tables:print_kernel",
        help="Compute the Fisher kernel: how a step on one response moves another.",
    ),
    Verb(
        "noise",
        options.measured,
        through="isentrope.cli.running:attributing",
        run=f"{_PIPELINES}.noise:find_noise",
        show=f"{_TABLES}:print_noise",
        help="Measure the gradient noise scale, and that of the entropy change.",
    ),
    Verb(
        "variance",
        options.measured,
        through="isentrope.cli.running:attributing",
        run=f"{_PIPELINES}.variance:find_variance",
        show="isentrope.cli.variance_table:print_variance",
        help="Compare the errors of every estimator, and say how large E must be.",
    ),
    Verb(
        "audit",
        options.measured,
        through="isentrope.cli.running:attributing",
        run=f"{_PIPELINES}.audit:find_audit",
        show=f"{_TABLES}:print_audit",
        help="Hold every published proxy against the measured influence of tokens and sequences.",
    ),
    Verb(
        "try",
        options.tried,
        through="isentrope.cli.running:attributing",
        run="isentrope.cli.trial_table:find_trial",
        show="isentrope.cli.trial_table:print_trial",
        help="Try controls on the step of a checkpoint: entropy and reward gained, before a run.",
    ),
    Verb(
        "entropies",
        options.reconciled,
        through="isentrope.cli.running:attributing",
        run=f"{_PIPELINES}.entropies:find_entropies",
        show="isentrope.cli.entropies_table:print_entropies",
        help="Compare the entropy that a trainer logged with every definition of it, and with the "
        "exact one.",
    ),
    Verb(
        "check",
        options.checked,
        through="isentrope.cli.running:checking",
        run=f"{_PIPELINES}.check:check",
        show="isentrope.cli.check_table:print_findings",
        help="Check the instrument before measuring; exit status 1 if anything is wrong.",
    ),
    Verb(
        "plan",
        options.planned,
        through="isentrope.cli.running:planning",
        run=f"{_PIPELINES}.plan:plan",
        show="isentrope.cli.plan_table:print_plans",
        help="Say what memory and time a configuration takes, before anything runs; exit status 1 "
        "if it does not fit.",
    ),
    Verb(
        "convert",
        options.converted,
        through="isentrope.cli.running:converting",
        run="isentrope.trainers.convert.write:convert",
        show="isentrope.cli.running:print_converted",
        help="Write a checkpoint of FSDP, verl, DeepSpeed or torch.distributed as one that every "
        "verb reads.",
    ),
    Verb(
        "report",
        options.reported,
        through="isentrope.cli.running:reporting",
        run="isentrope.reports.report:write_report",
        show="isentrope.cli.running:print_report",
        help="Write report.html of a run: verdict, figures, checks, and where every number comes "
        "from.",
    ),
)

CONFIG_VERBS = (
    Verb(
        "show",
        options.shown,
        through="isentrope.cli.running:showing",
        run="isentrope.config.io:dump_config",
        show="isentrope.cli.running:print_text",
        help="Print every setting, its default or its value in CONFIG, and what it does.",
    ),
    Verb(
        "validate",
        options.validated,
        through="isentrope.cli.running:validating",
        run=f"{_PIPELINES}.kinds:load_any",
        show=f"{_PIPELINES}.kinds:intention",
        help="Check CONFIG: its keys and values, and that the files it names are there.",
    ),
)


def add_to(app: typer.Typer, verbs: tuple[Verb, ...]) -> None:
    """Add rows to an application."""
    for verb in verbs:
        app.command(name=verb.name, help=verb.help, short_help=verb.help)(_command(verb))


def _command(verb: Verb) -> Callable[..., None]:
    """A function with the signature of the verb's options, which calls it in a session."""

    @wraps(verb.options)
    def command(**given: Any) -> None:
        with stopped_by_signals():
            load("isentrope.cli.session:run")(verb, given)

    return command
