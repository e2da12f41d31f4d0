"""What is known of the verbs that put a question to checkpoints.

The loop over checkpoints, the tables of a study, plans and reports read these facts. What a verb
does, and its options, are in its module of `isentrope.commands`, on a floor above all of these
readers: a fact that stood there would be read upwards.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Verb:
    """The facts of a verb that takes a configuration of `measure`.

    Attributes:
        name: As on the command line, in names of folders and in the schema of results.json.
        table: The table that is joined over the items of a study.
        joined: What the joined table is called; "<name>_all" if empty.
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
    table: str
    joined: str = ""
    errors_over_E: bool = False
    rounded: bool = False
    own_stages: bool = False
    processes: bool = True
    least_groups: int = 1
    gradients: Literal["groups", "prompts", "blocks"] | None = None
    absent: str = ""


MEASURE = Verb(
    "measure",
    table="sweep",
    joined="all",
    errors_over_E=True,
    rounded=True,
    own_stages=True,
    absent="There is no ΔH(η)",
)
INFLUENCE = Verb(
    "influence",
    table="sequences",
    errors_over_E=True,
    gradients="groups",
    absent="There is no attribution to sequences and tokens",
)
KERNEL = Verb(
    "kernel",
    table="structure",
    gradients="blocks",
    absent="There is no Fisher kernel",
)
NOISE = Verb(
    "noise",
    table="noise",
    least_groups=4,
    gradients="prompts",
    absent="There are no noise scales",
)
VARIANCE = Verb(
    "variance",
    table="variance",
)
AUDIT = Verb(
    "audit",
    table="audit",
    gradients="groups",
    absent="There is no audit of proxies",
)
TRY = Verb(
    "try",
    table="trial",
    errors_over_E=True,
    processes=False,
)
ENTROPIES = Verb(
    "entropies",
    table="entropies",
    errors_over_E=True,
)

VERBS = {
    verb.name: verb for verb in (MEASURE, INFLUENCE, KERNEL, NOISE, VARIANCE, AUDIT, TRY, ENTROPIES)
}
"""All of them, in the order of the help."""

COUNTED = tuple(verb.name for verb in (MEASURE, INFLUENCE, KERNEL, NOISE, VARIANCE, AUDIT))
"""Those whose passes are counted, so that they can be planned."""

RESULTS = "results.json"
"""File of a result."""
