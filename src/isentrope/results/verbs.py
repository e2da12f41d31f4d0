"""The verbs that put a question to checkpoints, named in one place.

Functions are given by dotted names and imported when their verb is called, so that the command line
loads no torch to print its help. A new verb is a module of `isentrope.verbs` with its analysis and
what it prints, a result in `results.results`, and a row here.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["measure", "evaluate", "sft", "train"]
"""Verbs whose configurations have roots of their own."""


@dataclass(frozen=True)
class Verb:
    """A verb that takes a configuration of `measure`.

    Attributes:
        name: As on the command line, in names of folders and in the schema of results.json.
        help: A sentence.
        analyse: Dotted name of the function from a prepared checkpoint to its result.
        result: Dotted name of the kind of its result.
        printed: Dotted name of the function from a result and its folder to what is printed.
        table: The table that is joined over the items of a study.
        joined: What the joined table is called; "<name>_all" if empty.
        figure: Dotted name of the function from a result to a figure, and the figure's file.
        together: Whether all results of a study are printed by one call.
        errors_over_E: Whether errors are over the prompts of E, which all repeats share.
        rounded: Whether it can measure the step that training rounds, whose parts do not sum to v.
        own_stages: Whether it times its stages itself.
        processes: Whether processes of torchrun can share its work.
        least_groups: Prompt groups that U must have.
        gradients: What it holds gradients of: groups of E's prompts, those of each prompt of U too,
            or the responses of blocks.
        absent: What a report says where there is no result; empty for a verb that it leaves out.
    """

    name: str
    help: str
    analyse: str
    result: str
    printed: str
    table: str
    joined: str = ""
    figure: tuple[str, str] | None = None
    together: bool = False
    errors_over_E: bool = False
    rounded: bool = False
    own_stages: bool = False
    processes: bool = True
    least_groups: int = 1
    gradients: Literal["groups", "prompts", "blocks"] | None = None
    absent: str = ""


MEASURE = Verb(
    "measure",
    "Measure how much the next step of a checkpoint changes entropy.",
    analyse="isentrope.verbs.measure:find_change",
    result="isentrope.results.results:MeasureResult",
    printed="isentrope.verbs.printed_measure:printed_measurements",
    table="sweep",
    joined="all",
    figure=("isentrope.reports.panels.change:entropy_change_figure", "entropy_change.png"),
    together=True,
    errors_over_E=True,
    rounded=True,
    own_stages=True,
    absent="There is no ΔH(η)",
)
INFLUENCE = Verb(
    "influence",
    "Attribute a step's change of entropy to sequences and tokens.",
    analyse="isentrope.verbs.influence:find_influence",
    result="isentrope.results.results:InfluenceResult",
    printed="isentrope.verbs.influence:printed_influence",
    table="sequences",
    errors_over_E=True,
    gradients="groups",
    absent="There is no attribution to sequences and tokens",
)
KERNEL = Verb(
    "kernel",
    "Compute the Fisher kernel: how a response moves other responses.",
    analyse="isentrope.verbs.kernel:find_kernel",
    result="isentrope.results.results:KernelResult",
    printed="isentrope.verbs.kernel:printed_kernel",
    table="structure",
    gradients="blocks",
    absent="There is no Fisher kernel",
)
NOISE = Verb(
    "noise",
    "Measure the noise scale of the gradient, and of entropy.",
    analyse="isentrope.verbs.noise:find_noise",
    result="isentrope.results.results:NoiseResult",
    printed="isentrope.verbs.noise:printed_noise",
    table="noise",
    least_groups=4,
    gradients="prompts",
    absent="There are no noise scales",
)
VARIANCE = Verb(
    "variance",
    "Compare the errors of estimators, and say how large E must be.",
    analyse="isentrope.verbs.variance:find_variance",
    result="isentrope.results.results:VarianceResult",
    printed="isentrope.verbs.variance:printed_variance",
    table="variance",
)
AUDIT = Verb(
    "audit",
    "Compare published proxies with the measured influence.",
    analyse="isentrope.verbs.audit:find_audit",
    result="isentrope.results.results:AuditResult",
    printed="isentrope.verbs.audit:printed_audit",
    table="audit",
    gradients="groups",
    absent="There is no audit of proxies",
)
TRY = Verb(
    "try",
    "Try controls on the next step: what they gain and what they cost.",
    analyse="isentrope.verbs.trial:find_trial",
    result="isentrope.results.results:TrialResult",
    printed="isentrope.verbs.trial:printed_trial",
    table="trial",
    figure=("isentrope.reports.panels.change:trial_figure", "trial.png"),
    errors_over_E=True,
    processes=False,
)
ENTROPIES = Verb(
    "entropies",
    "Find out which definition of entropy a trainer logged.",
    analyse="isentrope.verbs.entropies:find_entropies",
    result="isentrope.results.results:EntropiesResult",
    printed="isentrope.verbs.entropies:printed_entropies",
    table="entropies",
    errors_over_E=True,
)

VERBS = {
    verb.name: verb for verb in (MEASURE, INFLUENCE, KERNEL, NOISE, VARIANCE, AUDIT, TRY, ENTROPIES)
}
"""All of them, in the order of the help."""
