"""What `isentrope measure` answers: how far one step moves entropy, at training's rate or another.

All checkpoints of a study have one table, and sentences and lines of their own.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from isentrope.checkpoint.in_force import ASSUMED, OURS
from isentrope.checkpoint.limits import FEWER_STEPS
from isentrope.checkpoint.step import OTHER_GROUPS
from isentrope.checks.checkpoint import describe_group
from isentrope.estimators.identities import in_words, p_value
from isentrope.nouns.columns import KEY, ends, printed_columns, text
from isentrope.nouns.estimate import Estimate
from isentrope.results.answers.best_rate import best_rate_sentence
from isentrope.results.answers.blocks import (
    Printed,
    Sentence,
    Table,
    has_interval,
    moved,
    named,
    number,
    short,
    value_and_interval,
    with_interval,
)
from isentrope.results.answers.checks import (
    ROUNDING_FLOOR,
    TRUST,
    WEIGHTS,
    checks_of_measure,
    failed,
    trust_sentence,
)
from isentrope.results.answers.first_order import first_order_sentence, parts_sentence
from isentrope.results.answers.frontier import room_lines, room_sentences
from isentrope.results.results import MeasureResult
from isentrope.results.sweep import SweepLine
from isentrope.system.formatting import MISSING, known, listed, percent
from isentrope.update.step import COMPONENTS

HOW_MUCH = "How much?"
PRICE = "At what price?"
AT_RATE = "At η = "
"""How a sentence on rows of the sweep begins."""
WITHHELD = "δH₁ and δH₂ are not given"
"""How a sentence on missing derivatives begins."""
LEAST_SHARE = 0.001
"""Of the entropy, below which a change is said to be less."""
MARK = "→ "
"""Before the rate of interest in the table."""


def measure_sentences(result: MeasureResult) -> Iterator[Sentence]:
    """How much, who, at what price, and whether to trust it; then the orders and the best rate."""
    yield from change_sentence(result)
    yield from parts_sentence(result.budget)
    yield from price_sentence(result)
    yield from room_sentences(result.frontier, result.rate)
    yield from trust_sentence(list(checks_of_measure(result)))
    yield from first_order_sentence(result)
    yield from best_rate_sentence(result)


def change_at_rate(result: MeasureResult) -> Estimate | None:
    """ΔH at the rate of interest, where it was measured."""
    row = result.at_rate()
    return None if row is None or math.isnan(row.change.value) else row.best


def change_sentence(result: MeasureResult) -> Iterator[Sentence]:
    """ΔH of one step at the rate of interest, as far as it may be said."""
    change = change_at_rate(result)
    if result.rate is None:
        return
    step = f"One step from {result.name} at the {result.rate_name} η = {short(result.rate)}"
    failures = [name for name in failed(list(checks_of_measure(result))) if name != WEIGHTS]
    if result.batches.E.prompt_draws < 2:
        text = (
            f"{step}: no change of entropy is given, because E has responses to one prompt alone, "
            "and errors are over prompts; draw E from several prompts (--prompts FILE, or "
            "batch_config.B_E)."
        )
        yield Sentence(text, "doubt", HOW_MUCH)
    elif failures == [ROUNDING_FLOOR]:
        text = (
            f"{step}: no change of entropy is given, because its learning rate is below the "
            "smallest that rounding lets this E measure (rounding floor); use "
            "precision.runtime_dtype=float64."
        )
        yield Sentence(text, "doubt", HOW_MUCH)
    elif failures:
        text = (
            f"{step}: no change of entropy is given, because a check failed ({listed(failures)}); "
            "isentrope check says what to do."
        )
        yield Sentence(text, "doubt", HOW_MUCH)
    elif change is None:
        text = f"{step} was not measured: add its rate to estimator.eta_list."
        yield Sentence(text, "doubt", HOW_MUCH)
    elif not has_interval(change):
        text = (
            f"{step}: whether it lowers or raises entropy is not known, because there is no "
            "interval. Draw fresh responses by estimator.resample_collapsed=true, or use a larger "
            "batch_config.B_E."
        )
        yield Sentence(text, "doubt", HOW_MUCH)
    elif change.covers(0.0):
        text = (
            f"{step} may lower or raise entropy: ΔH = {with_interval(change)} {result.unit}, and "
            "the interval holds zero; a larger batch_config.B_E shortens it."
        )
        yield Sentence(text, "doubt", HOW_MUCH)
    else:
        part = abs(change.value / result.at_theta.value)
        share = percent(part) if part >= LEAST_SHARE else f"less than {percent(LEAST_SHARE)}"
        text = (
            f"{step} {moved(change, 'entropy', result.unit)}, {share} of the entropy that is left."
        )
        yield Sentence(text, question=HOW_MUCH)


def price_sentence(result: MeasureResult) -> Iterator[Sentence]:
    """What reward comes with the entropy; nothing where rewards are not known."""
    price = result.price
    if price is None or price.whole.reward is None:
        return
    reward = price.whole.reward
    if not has_interval(reward):
        text = "What reward changes with it is not known: there is no interval."
        yield Sentence(text, "doubt", PRICE)
        return
    rate = price.whole.reward_for_a_nat
    text = f"To first order reward changes by ΔJ = {with_interval(reward)} with it"
    if rate is not None and has_interval(rate):
        text += f", which is {with_interval(rate)} {rate.unit}"
    yield Sentence(f"{text}.", "doubt" if reward.covers(0.0) else "fact", PRICE)


def measure_blocks(results: Sequence[MeasureResult]) -> Printed:
    """The answer for each checkpoint, one table for all, and what goes with each."""
    above: list[Sentence] = []
    below: list[list[Sentence]] = []
    for result in results:
        sentences = list(measure_sentences(result))
        above += [x for x in sentences if x.question in (HOW_MUCH, TRUST)]
        below.append([x for x in sentences if x.question not in (HOW_MUCH, TRUST)])
    yield from above
    yield sweep_table(results)
    for result in results:
        name = f"{result.name}: " if len(results) > 1 else ""
        for sentence in _on_rows(result):
            yield f"  note         {name}{sentence}"
    for result, sentences in zip(results, below, strict=True):
        yield f"{result.name}:"
        yield from sentences
        yield from summary_lines(result)


def sweep_table(results: Sequence[MeasureResult]) -> Table:
    """One table for all checkpoints, whose results are in one unit."""
    title = f"Change of entropy ΔH(η) in {results[0].unit}"
    if any(s.source == ASSUMED for result in results for s in result.settings.keys.values()):
        title += ", of a step with assumed settings (note)"
    columns = [
        replace(column, value=column.title)
        for column in printed_columns(SweepLine)
        if column.title != "checkpoint" or len(results) > 1
    ]
    return Table(title, [cells for result in results for cells in _cells(result)], columns)


def _on_rows(result: MeasureResult) -> list[str]:
    """What limits the numbers of the table, which is said below it."""
    return [sentence for sentence in result.warnings if sentence.startswith(AT_RATE)]


def _cells(result: MeasureResult) -> Iterator[Mapping[str, str]]:
    """Cells of each learning rate by heading, and below it those of fresh responses."""
    columns = list(printed_columns(SweepLine))
    several = len(result.sweep) > 1
    for row in result.sweep:
        line = SweepLine(**vars(row), checkpoint=result.policy.name)
        cells = {column.title: column.cell(KEY, line) for column in columns}
        if cells["ESS"] != MISSING:
            cells["ESS"] += f"/{result.batches.B_E}"
        if several and row.eta == result.rate:
            cells["η"] = MARK + cells["η"]
        yield cells
        if (fresh := row.resampled) is not None:
            resampled = replace(line, change=fresh, verdict="resampled")
            shown = ("change", "verdict")
            yield {c.title: c.cell(KEY, resampled) if c.value in shown else "" for c in columns}


def _said_before_lines(result: MeasureResult) -> list[str]:
    """Why columns of the table are empty, and what makes the step another one."""
    beginnings = (WITHHELD, OTHER_GROUPS, FEWER_STEPS)
    return [sentence for sentence in result.warnings if sentence.startswith(beginnings)]


def summary_lines(result: MeasureResult) -> Iterator[str]:
    """What goes with a table: entropy, orders, reward, positions, checks and warnings."""
    for sentence in _said_before_lines(result):
        yield f"  note         {sentence}"
    for group in result.step.param_groups:
        yield f"  param group  {describe_group(group)}"
    for kind in ("per_token", "per_sequence"):
        entropy = result.entropy[kind]
        yield f"  entropy      {text(entropy)} {entropy.unit}"
    if (first := result.first_order) is not None:
        yield (
            f"  first order  {text(first)} {first.unit}; at fixed samples (what an entropy bonus "
            f"sees) {text(result.pathwise)}"
        )
        yield f"  of which     {named({name: result.budget.get(name) for name in COMPONENTS})}"
    if (reward := result.reward) is not None:
        line = f"  reward       J {text(reward.at_theta)}"
        if (row := reward.at(result.rate)) is not None and known(row.change.ci_low) is not None:
            line += f"; at η = {row.eta:.3g} ΔJ {text(row.change)} {ends(row.change)}"
        yield line
    yield from _price_lines(result)
    yield from room_lines(result.frontier, result.rate)
    recorded = {key: s for key, s in result.settings.keys.items() if s.source not in OURS}
    if recorded:
        values = ", ".join(f"{key.split('.')[1]} {x.value}" for key, x in recorded.items())
        files = ", ".join(dict.fromkeys(setting.source for setting in recorded.values()))
        yield f"  as trained   {values} ({files})"
    checks = result.checks
    identities = {"score identity": checks.score_identity_z, "martingale": checks.martingale_z}
    tested = {name: z for name, z in identities.items() if z is not None}
    words = [
        f"{name} z = {number(z)} ({in_words(p_value(z), len(tested))})"
        for name, z in tested.items()
    ]
    floor = number(checks.rounding_floor.log_weight)
    yield f"  checks       {'; '.join([*words, f'rounding {floor} nats per sequence'])}"
    for sentence in result.warnings:
        if sentence not in (*_on_rows(result), *_said_before_lines(result)):
            yield f"  note         {sentence}"


def _price_lines(result: MeasureResult) -> Iterator[str]:
    """How the two gradients lie, and at which positions entropy changes."""
    price = result.price
    if price is None:
        return
    if (cosine := value_and_interval(price.cosine)) != MISSING:
        yield f"  cosine       of the gradients of entropy and reward {cosine}"
    for name, part in price.at.items():
        if part.tokens == 0:
            yield f"  at {name:<16} no position of E"
            continue
        line = f"  at {name:<16} {part.tokens:4.0%} of tokens"
        if (share := value_and_interval(part.share)) != MISSING:
            line += f" have {share} times the change of entropy"
        if part.change is not None:
            line += f", ΔH {text(part.change)}"
        rate = part.reward_for_a_nat
        if rate is not None and (exchanged := value_and_interval(rate)) != MISSING:
            line += f", {exchanged} {rate.unit}"
        yield line
