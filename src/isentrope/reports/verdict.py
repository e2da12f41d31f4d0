"""The verdict: what the results of a run answer, one question after another.

Each sentence is the result's own (`results.answers`), and carries the intervals of what it says.
Where a result is not there, its sentence is not there either. Checks of all results are one
sentence, and the best rate is beside the noise scale.
"""

from collections.abc import Iterator

from isentrope.reports.panels.checks import checks_of
from isentrope.reports.read_run import Reading, as_far_as_readable
from isentrope.reports.words import records
from isentrope.results.answers.best_rate import HIGHER_RATE, best_rate_sentence
from isentrope.results.answers.blocks import Sentence
from isentrope.results.answers.checks import TRUST, trust_sentence
from isentrope.results.answers.classes import WHICH_TOKENS
from isentrope.results.answers.evaluate import TRAINING, evaluation_sentence
from isentrope.results.answers.first_order import FIRST_ORDER, WHO
from isentrope.results.answers.influence import WHOSE_PROMPTS
from isentrope.results.answers.measure import HOW_MUCH, PRICE
from isentrope.results.answers.training import training_sentence
from isentrope.results.results import AuditResult, InfluenceResult, MeasureResult, NoiseResult

QUESTIONS = (
    HOW_MUCH,
    WHO,
    PRICE,
    TRUST,
    FIRST_ORDER,
    HIGHER_RATE,
    WHOSE_PROMPTS,
    WHICH_TOKENS,
    TRAINING,
)
"""In the order of the page."""
FIRST = QUESTIONS[:4]
"""Those that the page and the terminal show before all others."""


def verdict(reading: Reading) -> list[Sentence]:
    """Sentences: those of the four first questions, then the others; each question once."""
    answers: dict[str, Sentence] = {}
    sources = (_joined, _measured, _influence, _audit, _training)
    for sentence in as_far_as_readable(reading, "verdict", *sources):
        answers.setdefault(sentence.question, sentence)
    # where no step was measured, what training did comes before all others
    order = QUESTIONS if HOW_MUCH in answers else (TRAINING, *QUESTIONS)
    return [answers[question] for question in dict.fromkeys(order) if question in answers]


def _joined(reading: Reading) -> Iterator[Sentence]:
    """What more than one result answers: all checks, and the best rate beside the noise."""
    yield from trust_sentence(checks_of(reading))
    measured = reading.in_focus(MeasureResult)
    noise = reading.in_focus(NoiseResult)
    if measured is not None:
        yield from best_rate_sentence(measured.result, None if noise is None else noise.result)


def _measured(reading: Reading) -> Iterator[Sentence]:
    yield from reading.shown(MeasureResult).result.sentences()


def _influence(reading: Reading) -> Iterator[Sentence]:
    yield from reading.shown(InfluenceResult).result.sentences()


def _audit(reading: Reading) -> Iterator[Sentence]:
    yield from reading.shown(AuditResult).result.sentences()


def _training(reading: Reading) -> Iterator[Sentence]:
    """What evaluations say from the first checkpoint to the last, or else the training log."""
    for evaluation in reading.evaluations[:1]:
        sampled = [(f"step {step:.0f}", row.metrics) for step, row in evaluation.sampled()]
        if len(sampled) > 1:
            yield from evaluation_sentence(sampled)
    yield from training_sentence(records(reading.logged("step")))
