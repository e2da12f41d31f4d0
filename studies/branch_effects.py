"""What branches did to entropy and reward, with errors over repeats and over prompts.

    change        d_sr = F(end of branch r of setting s) − F(start)
    difference    d_sr − d_0r,     0 the unchanged setting with the same draw r

F is the entropy per token h, or the mean reward, on held-out prompts that start and all ends share,
with the same random numbers. The mean over N repeats has

    SE² = s²/N + SE_prompts²

s² the variance between repeats, SE_prompts the jackknife over prompts (T11) of the mean. Intervals
are t, each error with its own quantile (`t_of_two_errors`); one repeat has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.estimators.repeats import mean_over_repeats
from isentrope.evaluation.records import RecordRow
from isentrope.nouns.estimate import ESTIMATE_COLUMNS, Estimate
from isentrope.nouns.tables import table_schema
from isentrope.system.file_contents import read_table
from studies.branch_plan import UNCHANGED

QUANTITIES = {"entropy_per_token": "nats per token", "reward": "reward"}
START = "start"


def sums_by_prompt(file: Path) -> pd.DataFrame:
    """The responses of one policy, by prompt.

    Args:
        file: records.parquet of an evaluation.

    Returns:
        A row per prompt: `entropy`, Σ H over the tokens of its responses in nats, `length`, their
        tokens, and `reward`, their mean reward.
    """
    by_prompt = read_table(file, schema=table_schema(RecordRow)).groupby("prompt")
    return by_prompt.agg({"entropy": "sum", "length": "sum", "reward": "mean"})


@dataclass(frozen=True)
class Effect:
    """A mean over the repeats of one setting.

    Attributes:
        checkpoint: Name of the start.
        step: Its step.
        setting: What was changed.
        quantity: One of `QUANTITIES`.
        against: `START`, or `UNCHANGED` for the difference of both changes.
        estimate: The mean; n is the number of repeats.
        se_repeats: Its error from the draws of prompts and tokens; NaN from one repeat.
        se_prompts: Its error from the prompts that it was evaluated on.
    """

    checkpoint: str
    step: int
    setting: str
    quantity: str
    against: str
    estimate: Estimate
    se_repeats: float
    se_prompts: float


def effects(
    checkpoint: str, step: int, start: pd.DataFrame, ends: Mapping[str, Sequence[pd.DataFrame]]
) -> list[Effect]:
    """Changes over the branches of a checkpoint, and their differences.

    Args:
        checkpoint: Its name.
        step: Its step.
        start: `sums_by_prompt` of the policy there.
        ends: Setting → those of the ends of its branches by repeat; `UNCHANGED` among them.

    Returns:
        Setting by setting: per quantity the change, and but for `UNCHANGED` the difference.
    """
    policies = [start, *(end for group in ends.values() for end in group)]
    entropy, length, reward = (
        torch.tensor([of[name].to_list() for of in policies]).double() for name in start
    )

    def statistics(omega: Tensor) -> Tensor:
        """Those of `QUANTITIES` of every policy, as functions of the prompts' weights."""
        return torch.cat([(entropy @ omega) / (length @ omega), (reward @ omega) / omega.sum()])

    found = infinitesimal_jackknife(statistics, torch.arange(len(start)))
    shape, rows = (len(QUANTITIES), len(policies)), torch.arange(1, len(policies))
    values, influences = found.values.view(shape), found.influences.view(*shape, -1)
    sizes = [len(group) for group in ends.values()]
    places = dict(zip(ends, rows.split(sizes), strict=True))
    made = []
    for setting, mine in places.items():
        for k, (quantity, unit) in enumerate(QUANTITIES.items()):
            for against, other in ((START, mine * 0), (UNCHANGED, places[UNCHANGED])):
                if setting == against:
                    continue
                change = values[k, mine] - values[k, other]
                phi = (influences[k, mine] - influences[k, other]).mean(0)
                method = "mean over repeats"
                known = Estimate.from_influences(
                    float(change.mean()), phi, unit=unit, method=method
                )
                value, se, half, of_repeats = mean_over_repeats(
                    change.tolist(), known.se, known.degrees_of_freedom or 1.0
                )
                ends_at = value - half, value + half
                estimate = Estimate(value, se, *ends_at, len(change), unit, method)
                place = (checkpoint, step, setting, quantity, against)
                made.append(Effect(*place, estimate, of_repeats, known.se))
    return made


def table(found: Sequence[Effect]) -> pd.DataFrame:
    """A row per effect: checkpoint, step, setting, quantity, against, value and its errors."""
    about = ("checkpoint", "step", "setting", "quantity", "against")
    columns = [*about, *ESTIMATE_COLUMNS, "n", "unit", "se_repeats", "se_prompts"]
    return pd.DataFrame([vars(e.estimate) | vars(e) for e in found], columns=columns)
