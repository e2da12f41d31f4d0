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
    """What is said of the results of a verb, one after another, each with its warnings.

    Attributes:
        sentences: Those of one result, by the question that each answers.
        tables: What is printed of one result below them.
    """

    sentences: Callable[[Any], Iterator[Sentence]]
    tables: Callable[[Any], Printed]

    def blocks(self, results: Sequence[Any]) -> Printed:
        """Everything of results of several checkpoints: sentences, tables, lines and notes."""
        for result in results:
            yield from self.sentences(result)
            yield from self.tables(result)
            for warning in result.warnings:
                yield f"  note         {warning}"


@dataclass(frozen=True)
class JointAnswer:
    """What is said of the results of a verb that has one table for all of them.

    Attributes:
        sentences: Those of one result, by the question that each answers.
        blocks: Everything of results of several checkpoints: sentences, tables, lines and notes.
    """

    sentences: Callable[[Any], Iterator[Sentence]]
    blocks: Callable[[Sequence[Any]], Printed]


ANSWERS: dict[str, Answer | JointAnswer] = {
    verbs.MEASURE.name: JointAnswer(measure_sentences, measure_blocks),
    verbs.INFLUENCE.name: Answer(influence_sentences, influence_tables),
    verbs.KERNEL.name: Answer(kernel_sentences, kernel_tables),
    verbs.NOISE.name: Answer(noise_sentences, noise_tables),
    verbs.VARIANCE.name: Answer(variance_sentences, variance_tables),
    verbs.AUDIT.name: Answer(audit_sentences, audit_tables),
    verbs.TRY.name: Answer(trial_sentences, trial_tables),
    verbs.ENTROPIES.name: Answer(entropies_sentences, entropies_tables),
}
"""By the name of the verb."""
