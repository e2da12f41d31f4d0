"""What `isentrope influence` answers: who moved entropy, and what was decided before."""

from collections.abc import Iterator

from isentrope.nouns.columns import printed_columns, text
from isentrope.nouns.freedom import t_quantile
from isentrope.results.answers.blocks import (
    Printed,
    Sentence,
    Table,
    has_interval,
    moved,
    named,
    with_interval,
)
from isentrope.results.answers.checks import checks_of_influence, trust_sentence
from isentrope.results.answers.classes import (
    classes_table,
    criterion_sentence,
    reliability_line,
    thresholds_line,
)
from isentrope.results.answers.first_order import parts_sentence
from isentrope.results.answers.listed import ListedToken, listed_rows, rows_of_kind
from isentrope.results.attributions import Budget
from isentrope.results.results import InfluenceResult
from isentrope.system.formatting import known
from isentrope.update.step import COMPONENTS

WHOSE_PROMPTS = "Whose prompts"
MOST = "Who moved it most?"


def influence_sentences(result: InfluenceResult) -> Iterator[Sentence]:
    """Which token, which part of the step, whether to trust it, whose prompts, which classes."""
    yield from most_sentence(result)
    budget = result.entropy
    parts = {name: part for name in COMPONENTS if (part := getattr(budget, name, None)) is not None}
    yield from parts_sentence(parts | {"total": budget.total})
    yield from trust_sentence(list(checks_of_influence(result)))
    yield from shares_sentence(result)
    yield from criterion_sentence(result.classes)


def most_sentence(result: InfluenceResult) -> Iterator[Sentence]:
    """One of the tokens (or responses) that move entropy most; no number without an interval."""
    rows = listed_rows(result)
    if not rows:
        return
    row = max(rows, key=lambda row: abs(row.delta_h.value))
    equal = "," in row.sequence  # the places of equal responses
    response = f"{'each of the responses' if equal else 'response'} {row.sequence}"
    subject = f"{response}, “{row.text}”,"
    if isinstance(row, ListedToken):
        subject = f"the token between bars in “{row.text}” ({response})"
    largest = f"the largest, {subject.removesuffix(',')},"
    if not has_interval(row.delta_h):
        sentence = f"Which of the batch moves entropy most is not known: {largest} has no interval."
        yield Sentence(sentence, "doubt", MOST)
    elif row.delta_h.covers(0.0):
        sentence = (
            "Which of the batch moves entropy most is not known: the interval of "
            f"{largest} holds zero."
        )
        yield Sentence(sentence, "doubt", MOST)
    else:
        change = moved(row.delta_h, "entropy", result.entropy.unit)
        sentence = f"Of the batch, {subject} is among those that move entropy most: it {change}."
        yield Sentence(sentence, question=MOST)


def shares_sentence(result: InfluenceResult) -> Iterator[Sentence]:
    """The gradient's part by how two responses are related, on fresh responses to U's prompts."""
    shares = result.shares
    if shares is None:
        return
    parts = {"same prompt": shares.same_prompt, "other prompts": shares.other_prompt}
    terms = [f"{words} {with_interval(e)}" for words, e in parts.items() if e is not None]
    sentence = (
        f"On other responses than those of E, {shares.measured_on}, the gradient's part is, in "
        f"{shares.gradient.unit}: {', '.join(terms)}; together {with_interval(shares.gradient)}."
    )
    yield Sentence(sentence, question=WHOSE_PROMPTS)


def influence_tables(result: InfluenceResult) -> Printed:
    """Who moved the entropy most, the budget, and how reliable that is."""
    name = result.name
    entropy = result.entropy
    kind = rows_of_kind(result)
    rows = listed_rows(result)
    columns = list(printed_columns(type(rows[0]))) if rows else []
    if result.reward is None:
        columns = [column for column in columns if column.value != "delta_j"]
    lowering = sum(row.delta_h.value < 0 for row in rows)
    sections = [lowering - 1] if 0 < lowering < len(rows) else []
    yield Table(f"{name}: {kind} that move entropy most, per unit η", rows, columns, sections)
    yield from classes_table(name, result.classes)
    yield f"{name}: δH₁ {text(entropy.total)} {entropy.unit}, on {result.measured_on}"
    parts = _parts(entropy, "momentum", "decay", "gradient")
    yield f"  of which     {parts}; they sum to the total to {entropy.closure:.1e}"
    if (reward := result.reward) is not None:
        yield f"  reward       {_parts(reward, 'total', 'momentum', 'gradient')} {reward.unit}"
    yield from thresholds_line(result.classes)
    yield reliability_line(result.reliability)
    if (share := known(result.listed_share.get(kind))) is not None:
        yield (
            f"  listed       delta_h x {share:.2f}, the share of the largest {kind} that is not "
            f"noise; {kind}.parquet has what was measured"
        )
    df = result.groups - 1
    confidence = result.estimator.confidence
    errors = "values alone, without errors"
    if df:
        errors = (
            f"± is one se from {result.groups} groups of prompts, {df} degrees of freedom: "
            f"multiply by {t_quantile(df, confidence):.2f} for {confidence * 100:g} %"
        )
    yield f"  by           {result.how}; {errors}"


def _parts(budget: Budget, *names: str) -> str:
    return named({name: getattr(budget, name) for name in names})
