"""The stages of the measuring verbs, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from isentrope.attribution.gradients.sequence_gradients import ELEMENTS_HELD
from isentrope.models.precision import Precision
from isentrope.planning.followed import Batch
from isentrope.planning.holdings import Holdings, element
from isentrope.planning.passes import Passes
from isentrope.planning.shapes import Shapes
from isentrope.planning.sizes import Sizes
from isentrope.planning.stages import Stage, Term, Work, pass_terms
from isentrope.planning.tracing import Trace
from isentrope.policy.slopes import smaller_batches

NOTHING = Trace(0, 0, 0.0, 0.0, 0.0, 0.0)

SAMPLED_ROWS = 6
"""Arrays (sequences, vocabulary) in float64 that a draw by the inverse CDF has at once."""


@dataclass(frozen=True)
class Measuring:
    """The stages of one checkpoint.

    Attributes:
        shapes: Of the checkpoint.
        sizes: What is asked.
        passes: By precision, the passes over a micro-batch; None for what is held alone, which
            is the least that a verb takes.
    """

    shapes: Shapes
    sizes: Sizes
    passes: Callable[[Precision], Passes] | None = None

    def stages(self, verb: str) -> list[Stage]:
        """The stages of a verb.

        Args:
            verb: One of measure, influence, kernel, noise, variance, audit, and evaluate (of a
                chunk).

        Returns:
            The stages, with the memory and the work of one process.
        """
        share = 1 / self.sizes.processes
        return [replace(stage, work=stage.work.times(share)) for stage in self._stages(verb)]

    def _stages(self, verb: str) -> list[Stage]:
        if verb == "evaluate":
            return [self._load(), self._sampling(), self._scoring()]
        own = {
            "measure": self._measure,
            "influence": lambda: [
                *self._influence(self.sizes.tokens, self.sizes.reward),
                *self._past(),
            ],
            "kernel": self._kernel,
            "noise": lambda: [*self._noise(), *self._influence(False, False)],
            "variance": self._variance,
            "audit": lambda: self._influence(True, True),
        }[verb]
        return [*self._prepared(), *own()]

    @property
    def _held(self) -> Holdings:
        return Holdings(self.shapes, self.sizes.processes if self.sizes.sharded else 1)

    def _followed(self, precision: Precision, follow: Callable[[Passes], Trace]) -> Trace:
        return NOTHING if self.passes is None else follow(self.passes(precision))

    def _times(self, batch: Batch, share: int = 1) -> float:
        """Micro-batches of a batch, of so many times fewer tokens."""
        return batch.sequences / batch.first(self.sizes.max_tokens // share).sequences

    def _stage(
        self,
        name: str,
        precision: Precision,
        held: tuple[Term, ...],
        passes: list[tuple[Trace, float]],
        *,
        backward: bool = False,
    ) -> Stage:
        """Weights, what is held, and the largest of the passes."""
        largest = max((x for x, _ in passes), key=lambda x: x.peak, default=NOTHING)
        dropped = min(self._dropped(largest, precision, backward), largest.others)
        largest = replace(largest, others=largest.others - dropped)
        terms = (*self._held.weights(precision), *held)
        if passes and self.passes is not None:
            exchanged = self._held.exchanged(precision, backward=backward)
            terms = (*terms, *pass_terms(largest), *exchanged)
        work = Work.of(passes, double=element(precision) == 8)
        return Stage(
            name, tuple(term for term in terms if term.size or "disk" in term.formula), work
        )

    def _dropped(self, of: Trace, precision: Precision, backward: bool) -> int:
        """Bytes that a pass does not hold where trained layers are gathered one at a time."""
        trained, layers = self.shapes.spread_trainable, self.shapes.layers
        if not (self.sizes.sharded and trained):
            return 0
        if backward:  # one layer's gradients
            return element(precision) * trained * (layers - 1) // layers
        return of.more_layers_held  # θ + ηv, all that forward mode keeps of a layer

    def _prepared(self) -> list[Stage]:
        """Load, sampling and the step."""
        held, s = self._held, self.sizes
        stages = [self._load()]
        if s.draws_E or s.draws_U:
            stages.append(self._sampling())
        gradient = self._followed(s.updating, lambda p: p.gradient(s.U, False))
        moments = held.moments(2)
        stages.append(
            self._stage("optimizer's state", s.updating, (moments, held.optimizer_file()), [])
        )
        stages.append(
            self._stage(
                "update",
                s.updating,
                (moments, held.vectors("gradient", 1)),
                [(gradient, self._times(s.U))],
                backward=True,
            )
        )
        parts = held.vectors("gradient, components, P and v", 7)
        stages.append(self._stage("step", s.updating, (moments, parts), []))
        return stages

    def _load(self) -> Stage:
        held = self._held
        files = () if self.sizes.sharded else (held.files(),)  # pages that processes share
        return Stage("load", (*held.weights(Precision("float32")), *files))

    def _scoring(self) -> Stage:
        """Scores of a chunk of an evaluation."""
        s = self.sizes
        scores = self._followed(s.measuring, lambda x: x.scores(s.E))
        return self._stage("scoring", s.measuring, (), [(scores, self._times(s.E))])

    def _sampling(self) -> Stage:
        s, held, shapes = self.sizes, self._held, self.shapes
        drawn = [b for b, own in ((s.E, s.draws_E), (s.U, s.draws_U)) if own]
        b = min(s.sampled_at_once, -(-max(x.sequences for x in drawn) // s.processes))
        length = max(x.prompt + x.response for x in drawn)
        size = element(s.sampling)
        cache = b * length * shapes.cached_numbers * size
        draws = b * shapes.vocabulary * (8 * SAMPLED_ROWS + size)
        words = f"{b} sequences x {shapes.vocabulary:,} entries x {SAMPLED_ROWS} arrays x 8 bytes"
        terms = (
            *held.weights(s.sampling),
            held.moments(),
            Term("KV cache", cache, f"{b} x {length} tokens x {shapes.cached_numbers:,} x {size}"),
            Term("logits", draws, words),
        )
        each = 2.0 * shapes.parameters
        tokens = sum(x.sequences * (x.prompt + x.response) for x in drawn)
        steps = sum(-(-x.sequences // b) * x.response for x in drawn)
        read = float(steps * shapes.parameters * size)  # all weights are read for every token
        return Stage("sampling", terms, Work(each * tokens, read, size == 8))

    def _measure(self) -> list[Stage]:
        s, held = self.sizes, self._held
        times, p = self._times(s.E), s.measuring
        step = held.step()
        stages = []
        if s.order == 2:
            stages.append(self._check(step))
        slopes = self._followed(p, lambda x: x.derivatives(s.E, s.order))
        stages.append(self._stage("derivatives", p, (step,), [(slopes, times)]))
        moved = self._followed(p, lambda x: x.moved(s.E, s.order == 2))
        points = s.rates * s.E.sequences * s.E.response * 6 * 8
        table = Term("scores of the sweep", points, f"{s.rates} rates x tokens x 6 x 8 bytes")
        stages.append(self._stage("sweep", p, (step, table), [(moved, times * s.rates)]))
        if s.order:
            first = self._followed(p, lambda x: x.derivatives(s.E, 1))
            stages.append(self._stage("budget", p, (step,), [(first, 3 * times)]))
        scores = self._followed(p, lambda x: x.scores(s.E))
        near = held.vectors("moved parameters", 1)
        stages.append(self._stage("checks", p, (step, near), [(scores, 4 * times)]))
        return stages

    def _check(self, step: Term) -> Stage:
        """The model's second derivatives, in float64 where it is whole, along a direction."""
        s, held, p = self.sizes, self._held, self.sizes.measuring
        direction, copies = held.vectors("direction of the check", 1), ()
        if element(p) < 8 and not s.sharded:
            n = self.shapes.parameters
            copies = (Term("weights in float64", 8 * n, f"{n:,} parameters x 8 bytes"),)
            p = Precision("float64")
        pass_ = self._followed(p, lambda x: x.check())
        stage = self._stage("second-derivative check", s.measuring, (), [(pass_, 2)])
        return replace(stage, terms=(*stage.terms, step, direction, *copies))

    def _variance(self) -> list[Stage]:
        s, p, step = self.sizes, self.sizes.measuring, self._held.step()
        times = self._times(s.E)
        slopes = self._followed(p, lambda x: x.derivatives(s.E, 1))
        moved = self._followed(p, lambda x: x.moved(s.E, False))
        scores = self._followed(p, lambda x: x.scores(s.E))
        return [
            self._stage("derivatives", p, (step,), [(slopes, times)]),
            self._stage("moved scores", p, (step,), [(moved, times)]),
            self._stage("control variate", p, (step,), [(scores, times)]),
        ]

    def _influence(self, tokens: bool, reward: bool) -> list[Stage]:
        s, held, p = self.sizes, self._held, self.sizes.measuring
        count = held.group_count(s.groups, s.E.sequences // s.group_E, tokens)
        quantities = 2 if reward else 1
        step, times = held.step(), self._times(s.E)
        first = self._followed(p, lambda x: x.derivatives(s.E, 1))
        stages = [self._stage("derivative of E", p, (step,), [(first, times)])]
        part = s.E.part(count)
        by_group = self._followed(p, lambda x: x.gradient(part, s.entropies))
        stored = held.groups(quantities * count, p, s.storage)
        total = held.vectors("gradient", 1)
        passes = [(by_group, quantities * count * self._times(part))]
        stages.append(
            self._stage(
                "gradients of error groups", p, (step, stored, total), passes, backward=True
            )
        )
        if s.entropies and count > 1:
            one = held.groups(count, p, s.storage)
            whole = self._followed(p, lambda x: x.gradient(s.E, False))
            stages.append(
                self._stage(
                    "gradient of the length", p, (step, one, total), [(whole, times)], backward=True
                )
            )
        directions = quantities * count
        if not tokens:
            return [*stages, self._projected(step, stored, directions)]
        along = held.directions(directions, p)
        most = held.at_once(directions)
        slopes = self._followed(p, lambda x: x.slopes(s.U, most))
        scores = self._followed(p, lambda x: x.scores(s.U))
        again = -(-directions // most)
        of_slopes = self._times(s.U, smaller_batches(most)) * again
        passes = [(slopes, of_slopes), (scores, self._times(s.U) * again)]
        return [*stages, self._stage("influence of tokens", p, (step, stored, along), passes)]

    def _projected(self, step: Term, stored: Term, directions: int) -> Stage:
        """Sequences: one backward pass over U, each gradient times all directions."""
        s, d = self.sizes, self._held.trainable
        size = element(s.measuring)
        stacked = Term(
            "directions", directions * size * d, f"{directions} x {d:,} trainable x {size} bytes"
        )
        gradients = self._followed(s.measuring, lambda x: x.sequence_gradients(s.U))
        held = (step, stored, stacked, self._in_flight(1))
        return self._stage(
            "influence of sequences",
            s.measuring,
            held,
            [(gradients, self._times(s.U))],
            backward=True,
        )

    def _past(self) -> list[Stage]:
        """Past updates: the same for each, at a θ of its own beside the present one."""
        s, held = self.sizes, self._held
        if not s.past:
            return []
        count = held.group_count(s.groups, s.E.sequences // s.group_E, s.tokens) * (
            2 if s.reward else 1
        )
        stored = held.groups(count, s.measuring, s.storage)
        one = self._projected(held.step(), stored, count)
        n = sum(term.size for term in held.weights(s.measuring))
        other = Term("weights of a past checkpoint", n, "as those of the present one")
        terms = (*one.terms, other)
        return [Stage("influence of past updates", terms, one.work.times(s.past))]

    def _in_flight(self, copies: int) -> Term:
        """The gradients of one parameter for the sequences of a micro-batch, as they arrive."""
        size, largest = element(self.sizes.measuring), self.shapes.largest
        rows = self.sizes.U.first(self.sizes.max_tokens).sequences
        most = min(rows * largest, max(ELEMENTS_HELD, largest))
        return Term(
            "gradients of sequences", copies * size * most, f"{copies} x {most:,} x {size} bytes"
        )

    def _kernel(self) -> list[Stage]:
        s = self.sizes
        fresh = replace(s.U, sequences=max(s.prompts * s.fresh, 1))
        sides = {"UU": (s.U, None), "EE": (s.E, None), "EU": (s.E, s.U), "FU": (fresh, s.U)}
        stages = []
        for block in dict.fromkeys(s.blocks):
            left, right = sides[block]
            stages.append(self._gram(f"kernel {block}", left, right))
            if right is not None:
                stages += self._gradients_part(block, left)
        return stages

    def _gradients_part(self, block: str, rows: Batch) -> list[Stage]:
        """δH₁ on the rows of a block, by scores and by forward mode."""
        p = self.sizes.measuring
        first = self._followed(p, lambda x: x.derivatives(rows, 1))
        scores = self._followed(p, lambda x: x.scores(rows))
        passes = [(first, self._times(rows)), (scores, self._times(rows))]
        return [self._stage(f"δH₁ of {block}", p, (self._held.step(),), passes)]

    def _noise(self) -> list[Stage]:
        return [self._gram("noise scale", self.sizes.U, None, rows=self.sizes.prompts)]

    def _gram(self, name: str, left: Batch, right: Batch | None, rows: int | None = None) -> Stage:
        s, held, size = self.sizes, self._held, element(self.sizes.measuring)
        right_rows = None if right is None else right.sequences
        stored = held.kernel_rows(rows or left.sequences, right_rows, s.measuring, s.storage)
        d = self._held.trainable
        scale = Term("P", size * d, f"{d:,} trainable x {size} bytes")
        sides, times = ([left], 1) if right is None else ([left, right], 2)  # with its diagonals
        passes = [
            (
                self._followed(s.measuring, lambda x, b=b: x.sequence_gradients(b)),
                times * self._times(b),
            )
            for b in sides
        ]
        terms = (held.step(), stored, scale, self._in_flight(2))
        return self._stage(name, s.measuring, terms, passes, backward=True)
