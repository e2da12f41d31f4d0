"""The passes that a measuring verb takes by its settings alone, for `isentrope plan`.

A pass reads every response of a batch once. A derivative of all tokens along one direction is one
forward-mode pass, and their second derivative one second-order pass. Checks that read a few
sequences are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from isentrope.attribution.influence.influence import (
    MAX_GROUP_BYTES,
    SEQUENCE_GROUPS,
    TOKEN_GROUPS,
)
from isentrope.attribution.influence.projection import DIRECTIONS_AT_ONCE, MAX_STACKED_BYTES
from isentrope.config.measure import MeasureConfig
from isentrope.estimators.price import PRICED
from isentrope.planning.plan import Batch, PassesOver
from isentrope.results.verbs import COUNTED
from isentrope.system.file_contents import count_rows
from isentrope.verbs.first_order import GROUPS_OF_ANGLE

DIFFERENCES = 4
"""Evaluations of E from which `checks` takes the rounding floor."""

GRAMS = 2
"""Kernels of one influence without pairs of a prompt: of h and of its denominator."""


@dataclass(frozen=True)
class Counting:
    """What the passes of a verb are counted from.

    Attributes:
        config: Settings of the measurement.
        batches: The batches by their names: E, U, and F where fresh responses are drawn.
        parameters: Number d of trained parameters.
        element: Bytes of a number at the measuring precision.
    """

    config: MeasureConfig
    batches: dict[str, Batch]
    parameters: int
    element: int

    def part(
        self, name: str, batch: str, stage: str, responses: int = 0, **passes: Any
    ) -> PassesOver:
        """Passes over a batch, or over some of its responses."""
        return PassesOver(name, batch, responses or self.batches[batch].responses, stage, **passes)

    def groups(self, *, tokens: bool) -> int:
        """Number of error groups of an influence."""
        analysis = self.config.analysis
        if analysis.groups is not None:
            return analysis.groups
        groups = TOKEN_GROUPS
        if not tokens:
            by_memory = MAX_GROUP_BYTES // (8 * self.parameters)
            groups = max(groups, min(SEQUENCE_GROUPS, by_memory))
        measured = "U" if analysis.overlap == "u_statistic" else "E"
        return min(groups, self.batches[measured].prompts)


def batches_of(verb: str, config: MeasureConfig) -> dict[str, Batch]:
    """The batches of a verb, as large as they may be.

    Args:
        verb: Name of the verb.
        config: Settings of the measurement.

    Returns:
        By name: E and U, and F where the verb draws fresh responses.

    Raises:
        FileNotFoundError: If a file of responses is not there.
    """
    data = config.batch_config
    estimator = config.estimator
    longest = config.sampling.max_new_tokens
    batches = {
        "E": _size_batch("E", data.B_E, data.G_E, longest, data.E_file),
        "U": _size_batch("U", data.B_U, data.G, longest, data.U_file),
    }
    shares = config.analysis.share_responses
    if verb == "measure" and estimator.method == "resampled":
        points = 1 + len(estimator.etas(1.0))  # θ itself is one
        responses = points * batches["E"].responses
        batches["F"] = Batch("F", batches["E"].prompts, responses, responses * longest)
    in_kernel = verb == "kernel" and "FU" in config.fisher_kernel.blocks
    if shares and (verb == "influence" or in_kernel):
        prompts = batches["U"].prompts
        batches["F"] = Batch("F", prompts, prompts * shares, prompts * shares * longest)
    return batches


def _size_batch(name: str, prompts: int, group: int, longest: int, file: str | None) -> Batch:
    if file is None:
        return Batch(name, prompts, prompts * group, prompts * group * longest)
    rows = count_rows(file)
    return Batch(name, rows, rows, rows * longest, file)


def count_passes(verb: str, counting: Counting) -> list[PassesOver]:
    """The parts of a verb, from drawing to its last check.

    Args:
        verb: One of `COUNTED`.
        counting: What they are counted from.

    Returns:
        Parts in the order in which they run; drawing has no passes.
    """
    batches = counting.batches
    drawn = [name for name in ("E", "U") if batches[name].file is None]
    parts = [counting.part("drawing", name, "batches") for name in drawn]
    ratios = int(counting.config.estimator.off_policy)
    parts.append(counting.part("step", "U", "update", forward=1 + ratios, backward=1))
    return [*parts, *_COUNT[verb](counting)]


def _count_measure(counting: Counting) -> Iterator[PassesOver]:
    estimator = counting.config.estimator
    analysis = counting.config.analysis
    rates = len(estimator.etas(1.0))
    resampled = estimator.method == "resampled"
    order = estimator.order
    forward = 0 if resampled else 1 + rates
    if estimator.rounded_step and not resampled:
        forward = 1 + 3 * rates  # each rate has a step of its own, and scores at θ
    forward += (order == 0) + (estimator.method == "doubly-robust")
    yield counting.part(
        "sweep",
        "E",
        "sweep",
        forward=forward,
        forward_mode=int(order == 1),
        second_order=int(order == 2),
        rates=0 if resampled else rates,
        entropies=True,
    )
    if resampled:
        yield counting.part("drawing", "F", "resample")
        yield counting.part("fresh responses", "F", "resample", forward=1, entropies=True)
    if order:
        yield counting.part("budget", "E", "budget", forward_mode=2)
    priced = analysis.price and estimator.options.method in PRICED and order
    if priced and analysis.reward and counting.batches["E"].prompts >= GROUPS_OF_ANGLE:
        yield counting.part(
            "angle",
            "E",
            "price",
            forward=1,
            backward=_count_gradients(counting, True),
            entropies=True,
        )
    yield counting.part("rounding floor", "E", "checks", forward=DIFFERENCES)


def _count_gradients(counting: Counting, errors: bool) -> int:
    """Gradients of entropy, its denominator where errors need it, and reward, of one pass."""
    per_token = counting.config.estimator.functional == "per_token"
    return 1 + (per_token and errors) + counting.config.analysis.reward


def _count_influence(
    counting: Counting, stage: str, *, tokens: bool, reward: bool
) -> Iterator[PassesOver]:
    analysis = counting.config.analysis
    batches = counting.batches
    one_batch = analysis.overlap == "u_statistic"
    measured = "U" if one_batch else "E"
    groups = counting.groups(tokens=tokens)
    errors = counting.config.estimator.functional == "per_token" and groups > 1
    backward = 1 + errors + (reward and not one_batch)
    yield counting.part("gradients", measured, stage, forward=2, backward=backward, entropies=True)
    group = -(-batches[measured].responses // groups)
    yield counting.part("both modes compared", measured, stage, group, forward_mode=1)
    if reward and one_batch:
        yield counting.part("gradient of the reward", "E", stage, forward=2, backward=1)
    quantities = 1 + reward
    if tokens:
        yield counting.part(
            "tokens",
            "U",
            stage,
            forward_mode=groups * quantities,
            at_once=min(DIRECTIONS_AT_ONCE, groups * quantities),
        )
        return
    stacked = groups * (quantities - one_batch)
    if one_batch:
        yield counting.part(
            "pairs",
            "U",
            stage,
            forward=2 * (1 + errors),
            backward=2 * (1 + errors),
            entropies=True,
        )
    if stacked:
        at_once = max(1, MAX_STACKED_BYTES // (counting.element * counting.parameters))
        passes = -(-stacked // at_once)
        yield counting.part("sequences", "U", stage, forward=passes, backward=passes)


def _count_shares(counting: Counting) -> Iterator[PassesOver]:
    """Influence by relation of two responses, on fresh responses."""
    if "F" not in counting.batches:
        return
    per_token = counting.config.estimator.functional == "per_token"
    grams = GRAMS if per_token and counting.batches["F"].prompts > 1 else 1
    yield counting.part("drawing", "F", "influence")
    yield counting.part(
        "pairs", "F", "influence", forward=1 + grams, backward=grams, entropies=True
    )
    yield counting.part("pairs", "U", "influence", forward=grams, backward=grams)


def _count_influence_verb(counting: Counting) -> Iterator[PassesOver]:
    analysis = counting.config.analysis
    yield from _count_influence(
        counting, "influence", tokens=analysis.tokens, reward=analysis.reward
    )
    yield from _count_shares(counting)


def _count_audit(counting: Counting) -> Iterator[PassesOver]:
    yield from _count_influence(counting, "audit", tokens=True, reward=False)
    yield counting.part("states of proxies", "U", "audit", forward=1)


def _count_noise(counting: Counting) -> Iterator[PassesOver]:
    yield counting.part("gradients of prompts", "U", "noise", forward=2, backward=2)
    yield from _count_influence(counting, "noise", tokens=False, reward=False)


def _count_variance(counting: Counting) -> Iterator[PassesOver]:
    yield counting.part("derivative", "E", "derivatives", forward_mode=1)
    yield counting.part("rate of interest", "E", "moved", forward=2, rates=1)
    yield counting.part("control variate", "E", "control_variate", forward=1)


def _count_kernel(counting: Counting) -> Iterator[PassesOver]:
    kernel = counting.config.fisher_kernel
    for block in dict.fromkeys(kernel.blocks):
        rows, columns = block
        if rows == "F":
            yield counting.part("drawing", "F", "kernel")
        if rows == columns:
            scored = int(rows == "U")
            yield counting.part(block, rows, "kernel", forward=1 + scored, backward=1)
            continue
        # the block, and its diagonals; then δH₁ on the rows, by kernel and by forward mode
        yield counting.part(
            block, rows, "kernel", forward=3, backward=2, forward_mode=1, entropies=True
        )
        sums = 0 if kernel.preconditioned else 1
        yield counting.part(block, columns, "kernel", forward=2 + sums, backward=2 + sums)


_COUNT: dict[str, Callable[[Counting], Iterator[PassesOver]]] = dict(
    zip(
        COUNTED,
        (
            _count_measure,
            _count_influence_verb,
            _count_kernel,
            _count_noise,
            _count_variance,
            _count_audit,
        ),
        strict=True,
    )
)
