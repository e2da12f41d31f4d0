"""What `isentrope kernel` answers: how far a step on one response moves others."""

from collections.abc import Iterator

from isentrope.attribution.fisher.pair_classes import HELD_OUT
from isentrope.nouns.columns import KEY, Column, ends, text
from isentrope.nouns.estimate import Estimate
from isentrope.results.answers.blocks import (
    Printed,
    Sentence,
    Table,
    has_interval,
    named,
    number,
    with_interval,
)
from isentrope.results.attributions import BlockRecord
from isentrope.results.results import KernelResult

HOW_TIED = "How are responses tied?"
DIRECTIONS = "In how many directions?"
_SHARES = ("diagonal", "same_prompt", "constant", "low_rank", "rest")

_STRUCTURE = (
    Column("relation", KEY, left=True),
    Column("entries", "entries", 3),
    Column("mean", "mean"),
    Column("spread", "spread", 2),
    Column("mean cosine", "mean_cosine"),
    Column("rms cosine", "rms_cosine", 1),
)
_PAIR_CLASSES = (
    Column("pairs", KEY, left=True),
    Column("their part of all", "fraction", 1),
    Column("δH₁ of it", "contribution"),
    Column("if all were such", "per_pair", 2),
    Column("falls as", "falls_as", 1, left=True),
)
_CLUSTERS = (
    Column("cluster", KEY),
    Column("responses", "members"),
    Column("mean reward", "reward", 1),
    Column("Σ wA", "weight", 2),
    Column("δH₁ per η", "delta_h"),
)
_TRUNCATIONS = (  # no ratio of two totals, which would depend on the size of the batch
    Column("truncation", KEY, left=True),
    Column("δH₁ per η", "total"),
    Column("Pearson", "pearson", 1),
    Column("Spearman", "spearman", 2),
)


def kernel_sentences(result: KernelResult) -> Iterator[Sentence]:
    """How like the gradients of two responses are, and in how many directions they point."""
    for block, record in result.blocks.items():
        if block[0] == block[-1]:
            yield from _tied(block, record)
            yield from _directions(block, record)
            break


def _tied(block: str, record: BlockRecord) -> Iterator[Sentence]:
    """Mean cosines with responses to the same prompt, and to others."""
    relations = {
        "same_prompt": "one prompt",
        "cross_prompt": "two prompts",
    }
    cosines = {
        words: relation.mean_cosine
        for name, words in relations.items()
        if (relation := (record.structure or {}).get(name)) is not None
    }
    resolved = {words: c for words, c in cosines.items() if c is not None and has_interval(c)}
    if not resolved:
        reason = "there is no interval of a mean cosine"
        text = f"How far a step on one response of {block[0]} moves others is not known: {reason}."
        yield Sentence(f"{text} Use more prompts.", "doubt", HOW_TIED)
        return
    terms = ", and ".join(
        f"{with_interval(c)} where they answer {words}" for words, c in resolved.items()
    )
    sentence = f"The gradients of two responses of {block[0]} have the mean cosine {terms}"
    difference = (record.same_less_other_prompt or {}).get("mean_cosine")
    tone = "fact"
    if difference is not None and len(resolved) > 1:
        sentence += f"; {_compared(difference)}"
        tone = "fact" if has_interval(difference) and not difference.covers(0.0) else "doubt"
    yield Sentence(f"{sentence}.", tone, HOW_TIED)


def _compared(difference: Estimate) -> str:
    if not has_interval(difference) or difference.covers(0.0):
        return "the batch does not tell the two apart"
    nearer = "more" if difference.value > 0 else "less"
    return f"a step moves responses to its own prompt {nearer} than others"


def _directions(block: str, record: BlockRecord) -> Iterator[Sentence]:
    """The effective rank beside the number of responses."""
    if record.spectrum is None:
        return
    rank = record.spectrum.effective_rank
    if not has_interval(rank):
        return
    sentence = (
        f"The {record.rows} responses of {block[0]} push in about {with_interval(rank)} directions."
    )
    yield Sentence(sentence, question=DIRECTIONS)


def kernel_tables(result: KernelResult) -> Printed:
    """The blocks, then what truncations of the kernel of U predict."""
    checkpoint = result.name
    truncated = "by a truncated kernel, by response of U"
    for block, record in result.blocks.items():
        name = f"{checkpoint}, {block}"
        if record.structure is not None:
            yield Table(f"{name}: pairs", record.structure, _STRUCTURE)
        yield f"{name}: {record.rows} x {record.columns}"
        yield from _lines(record)
        pairs = {kind.replace("_", " "): row for kind, row in (record.pair_classes or {}).items()}
        if pairs:
            yield Table(f"{name}: δH₁ per sequence and η by class of pairs", pairs, _PAIR_CLASSES)
        if record.clusters is not None and (parts := record.clusters.parts):
            yield Table(f"{name}: responses of U that move the rows alike", parts, _CLUSTERS)
        if record.predictions:
            title = f"{name}: δH₁ on the rows {truncated}"
            yield Table(title, record.predictions, _TRUNCATIONS)
    if result.truncations is not None:
        yield Table(f"{checkpoint}: δH₁ on U {truncated}", result.truncations, _TRUNCATIONS)


def _lines(record: BlockRecord) -> Iterator[str]:
    if record.same_less_other_prompt:
        parts = [
            f"{name.replace('_', ' ')} {number(x.value)} {ends(x)}"
            for name, x in record.same_less_other_prompt.items()
            if name != "mean"
        ]
        yield f"  difference   same minus other prompts: {', '.join(parts)}"
    if (spectrum := record.spectrum) is not None:
        nulls = named({null.name: null.effective_rank for null in spectrum.nulls})
        above = [null.above for null in spectrum.nulls if null.name == "observed norms"]
        yield (
            f"  spectrum     effective rank {text(spectrum.effective_rank)} (null: {nulls})"
            + "".join(f"; eigenvalues above those of observed norms: {k}" for k in above)
        )
    if (singular := record.singular) is not None:
        line = f"  singular     values of effective rank {text(singular.effective_rank)}"
        if (null := singular.null) is not None:
            line += f" (null: {number(null.effective_rank)}); {null.above} above the null's"
        yield line
    if (change := record.delta_h) is not None:
        yield (
            f"  δH₁          of the gradient, −Σ wA E[(S−S̄)K] = {text(change.kernel)}; by forward "
            f"mode on the same responses {text(change.forward_mode)} {change.kernel.unit}"
        )
    if record.held_out:
        yield f"  pairs        {HELD_OUT}"
    if (model := record.block_model) is not None:
        parts = {name.replace("_", " "): model.get(name) or None for name in _SHARES}
        yield f"  |K|² by      {named(parts)}"
    if record.clusters is not None:
        agreement = text(record.clusters.prompt_agreement)
        yield f"  clusters     agree with prompts to {agreement} (adjusted Rand index)"
