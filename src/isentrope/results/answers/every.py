"""The answer of each kind of result: its sentences, and all that is printed of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from isentrope.results import verbs
from isentrope.results.answers.audit import audit_sentences, audit_tables
from isentrope.results.answers.blocks import Printed, Sentence
from isentrope.results.answers.entropies import entropies_sentences, entropies_tables
from isentrope.results.answers.influence import influence_sentences, influence_tables
from isentrope.results.answers.kernel import kernel_sentences, kernel_tables
from isentrope.results.answers.measure import measure_blocks, measure_sentences
from isentrope.results.answers.noise import noise_sentences, noise_tables
from isentrope.results.answers.trial import trial_sentences, trial_tables
from isentrope.results.answers.variance import variance_sentences, variance_tables


@dataclass(frozen=True)
class Answer:
    """What is said of the results of a verb.

    Attributes:
        sentences: Those of one result, by the question that each answers.
        blocks: Everything of results of several checkpoints: sentences, tables, lines and notes.
    """

    sentences: Callable[[Any], Iterator[Sentence]]
    blocks: Callable[[Sequence[Any]], Printed]


def _in_turn(
    sentences: Callable[[Any], Iterator[Sentence]], tables: Callable[[Any], Printed]
) -> Answer:
    """The answer of a verb that prints one result after another, each with its warnings."""

    def blocks(results: Sequence[Any]) -> Printed:
        for result in results:
            yield from sentences(result)
            yield from tables(result)
            for warning in result.warnings:
                yield f"  note         {warning}"

    return Answer(sentences, blocks)


ANSWERS = {
    verbs.MEASURE.name: Answer(measure_sentences, measure_blocks),
    verbs.INFLUENCE.name: _in_turn(influence_sentences, influence_tables),
    verbs.KERNEL.name: _in_turn(kernel_sentences, kernel_tables),
    verbs.NOISE.name: _in_turn(noise_sentences, noise_tables),
    verbs.VARIANCE.name: _in_turn(variance_sentences, variance_tables),
    verbs.AUDIT.name: _in_turn(audit_sentences, audit_tables),
    verbs.TRY.name: _in_turn(trial_sentences, trial_tables),
    verbs.ENTROPIES.name: _in_turn(entropies_sentences, entropies_tables),
}
"""By the name of the verb."""
