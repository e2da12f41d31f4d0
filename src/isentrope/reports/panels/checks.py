"""Is the instrument sound, and where do the numbers come from?

Every check that the results carry is listed with what it should be; every file with the command
that makes it again, versions and seeds.
"""

from collections.abc import Iterator

import pandas as pd
import torch

from isentrope.models.float_types import AUTOCAST, DTYPES, rounding_bounds
from isentrope.models.precision import AUTOCAST_FIELDS
from isentrope.reports.evaluations import Sections
from isentrope.reports.panel import Panel, Source, markup
from isentrope.reports.read_run import REPORTED_KINDS, Reading, as_far_as_readable
from isentrope.results.answers.blocks import short
from isentrope.results.answers.checks import (
    Check,
    checks_of_influence,
    checks_of_measure,
    trust_sentence,
)
from isentrope.results.results import InfluenceResult, MeasureResult


def provenance(reading: Reading) -> Iterator[Panel]:
    """One row per file that was read, with the command that makes it again."""
    sources = (
        {f"train: {len(reading.metrics)} steps": reading.source} if len(reading.metrics) else {}
    )
    sources |= {f"{m.result.verb}: {m.name}": m.source for m in reading.measurements}
    sources |= {f"evaluate: {e.folder.name}": e.source for e in reading.evaluations}
    columns = ("seeds", "command", "versions")
    rows = [
        {"of": name} | {column: getattr(source, column) for column in columns}
        for name, source in sources.items()
    ]
    data = pd.DataFrame(rows)
    versions = data["versions"].unique()
    several = f"The parts were made with {len(versions)} different sets of versions: "
    yield Panel(
        Source(f"isentrope report {reading.folder}", str(reading.folder)),
        "provenance",
        "Commands, seeds and versions",
        f"{several if len(versions) > 1 else 'Everything was made with '}{'; '.join(versions)}.",
        table=data,
        body=markup("provenance", rows),
    )


def checks_of(reading: Reading) -> list[Check]:
    """Every check that the run's results allow."""
    return as_far_as_readable(reading, "checks", _of_measure, _of_influence, _of_training)


def _of_measure(reading: Reading) -> Iterator[Check]:
    return checks_of_measure(reading.shown(MeasureResult).result)


def _of_influence(reading: Reading) -> Iterator[Check]:
    return checks_of_influence(reading.shown(InfluenceResult).result)


def _of_training(reading: Reading) -> Iterator[Check]:
    ratios = reading.logged("policy_ratio/log_max")
    if len(ratios):
        largest = float(ratios["policy_ratio/log_max"].max())
        bound = rounding_bounds(_training_types(reading.config)).logprob
        yield Check(
            "sampler is the policy",
            short(largest, 2),
            f"≤ {bound:g}, which rounding explains",
            largest <= bound,
            "largest |log| of trainer's over sampler's probability of a token, over all steps",
        )


def _training_types(config: Sections) -> set[torch.dtype]:
    """Types in which a run's own trainer computed, by its config.yaml."""
    weights = config.get("model", {}).get("dtype")
    trainer = config.get("trainer", {})
    autocast = [kind for key, kind in AUTOCAST_FIELDS.items() if trainer.get(key)]
    types = DTYPES | AUTOCAST
    return {torch.float32} | {types[name] for name in (weights, *autocast) if name in types}


def checks_panel(reading: Reading) -> Iterator[Panel]:
    """All checks as a table, with the warnings of the results."""
    if checks := checks_of(reading):
        shown = [m for kind in REPORTED_KINDS if (m := reading.in_focus(kind)) is not None]
        notes = [(m.result.verb, warning) for m in shown for warning in m.result.warnings]
        source = (shown[0] if shown else reading).source
        data = pd.DataFrame(map(vars, checks))
        body = markup("checks", checks, notes)
        (sentence,) = trust_sentence(checks)
        yield Panel(source, "checks", "Checks", sentence.text, table=data, body=body)
