"""The verbs that put a question to checkpoints, named in one place, and the tables they write.

Functions are given by dotted names and imported when their verb is called, so that the command line
loads no torch to print its help. A new verb is a module of `isentrope.verbs` with its analysis and
what it prints, a result in `results.results`, and a row here.

`SCHEMAS` has the columns of each table and their types.
"""

from dataclasses import dataclass
from typing import Literal

from isentrope.system.file_contents import TableSchema

_TYPES = {
    name: kind
    for kind, names in {
        "string": "checkpoint verdict reward_verdict method quantity relation block truncation of "
        "proxy statistic warnings control part batch definition unit decoding",
        "string?": "residual_verdict key text reference prompt_text",
        "int64": "prompt sequence length position token_id entries prompts n batches items sample",
        "bool": "frontier truncated right",
        "list<int64>": "response_ids",
        "list<double>?": "logprobs entropies",
    }.items()
    for name in names.split()
}
"""Of the columns that are not "double"."""


def _columns(text: str) -> TableSchema:
    """A table with these columns.

    Args:
        text: Names; x± is x with x_se, x_ci_low and x_ci_high, one that ends in ? may be absent,
            and name:type has a type of its own.

    Returns:
        Their types.
    """
    columns: dict[str, str] = {}
    optional: set[str] = set()
    for word in text.split():
        name, _, kind = word.partition(":")
        stem = name.rstrip("±?")
        ends = ("", "_se", "_ci_low", "_ci_high") if "±" in name else ("",)
        names = [f"{stem}{end}" for end in ends]
        columns |= {name: kind or _TYPES.get(name, "double") for name in names}
        optional |= {*names} if name.endswith("?") else set()
    return TableSchema(columns, frozenset(optional))


_ESTIMATE = "value se ci_low ci_high"
_DID = (  # numbers that some controls have
    "touched? changed? touched_negative? touched_unlikely? touched_entropy? candidates? "
    "influence? influence_damped? pulled? entropy? entropy_se? predicted? predicted_se? asked? "
    "gain? gain_se? lambda? no_correction? clamped? step_share?"
)

SCHEMAS = {
    name: _columns(text)
    for name, text in {
        "sweep": "checkpoint eta delta_h± first_order first_order_se second_order second_order_se "
        "residual residual_se residual_ci_low? residual_ci_high? residual_verdict? ess ess_whole "
        "ess_integrated? carriers? khat verdict method delta_j±? reward_verdict?",
        "influences": "quantity prompt key influence",
        "sequences": "sequence prompt key group?:string length reward advantage S? H? delta_h "
        "delta_h_se delta_j? delta_j_se? text",
        "tokens": "sequence prompt position length token_id s H coefficient entropy_coefficient? "
        "reward advantage delta_h delta_h_se delta_j? delta_j_se? text",
        "structure": f"relation quantity entries {_ESTIMATE} prompts block",
        "block_model": f"quantity {_ESTIMATE} prompts block",
        "truncations": f"truncation quantity {_ESTIMATE} prompts",
        "noise": f"of quantity {_ESTIMATE} n unit:string?",
        "variance": "quantity method prompts batches se spread",
        "audit": f"proxy statistic top items {_ESTIMATE} prompts warnings of",
        "trial": f"control strength {_DID} part eta verdict delta_h± gained_delta_h± "
        "over_random_delta_h±? delta_j±? gained_delta_j±? over_random_delta_j±? price±? frontier",
        "entropies": f"batch definition unit {_ESTIMATE} difference±",
    }.items()
}
"""By the name of the file, without suffix. What may be absent is so in tables of former versions,
of batches without rewards, or of some controls."""

RECORDS = _columns(
    "decoding? prompt sample key reference prompt_text text:string length truncated reward right "
    "format unread?:bool group?:string response_ids? entropy? surprisal? logprobs? entropies?"
)
"""The responses of an evaluation."""


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
        planned: Whether `isentrope plan` runs it in small.
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
    planned: bool = True
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
    planned=False,
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
    planned=False,
)

VERBS = {
    verb.name: verb for verb in (MEASURE, INFLUENCE, KERNEL, NOISE, VARIANCE, AUDIT, TRY, ENTROPIES)
}
"""All of them, in the order of the help."""
