"""Where the steps of a trial stand on the frontier of the plain step (T14).

The free part of a step, which the batch decides, is scaled to the length of the plain one's, and
the momentum and decay of the plain step are put beside it. That compares directions: a shrunk step
stands where the plain one does. A step without momentum has no place, because it differs in what
was decided before the batch.
"""

from isentrope.attribution.frontier.edge import free_part
from isentrope.attribution.frontier.frontier import Frontier, frontier_of_step
from isentrope.attribution.frontier.places import Place, place_part
from isentrope.control.controls import STEP_CONTROLS
from isentrope.control.trial import Trial
from isentrope.estimators.sample import ScoredBatch
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import axpy, norm
from isentrope.results.attributions import Attempt
from isentrope.update.step import Step
from isentrope.verbs.first_order import edge_of, too_few_prompts
from isentrope.verbs.prepare import Prepared
from isentrope.verbs.trial_steps import NO_MOMENTUM


class TrialFrontier:
    """The edge of the plain step, and the places of others.

    Attributes:
        frontier: That of the plain step; None where E has no rewards, or fewer than 16 prompts.
        missing: Why there is none although E has rewards, in a sentence; empty otherwise.
        places: By name of the attempt, of those that have a place.
    """

    def __init__(self, ready: Prepared, plain: Step, sample: ScoredBatch, E: Rollouts) -> None:
        """Compute the gradients of reward and entropy, if E allows.

        Args:
            ready: The checkpoint.
            plain: The step without a control.
            sample: E scored at θ.
            E: The same, with rewards where they are known.
        """
        self._plain = plain
        self._confidence = ready.config.estimator.confidence
        self.frontier: Frontier | None = None
        self.places: dict[str, Place] = {}
        self.missing = () if E.rewards is None else too_few_prompts(E)
        if E.rewards is None or self.missing:
            return
        self._edge = edge_of(ready, plain, sample, E)
        self._along_plain = self._edge.gradients.along(free_part(plain))
        self.frontier = frontier_of_step(self._edge, plain, self._confidence)

    def place(self, attempt: Attempt, trial: Trial) -> None:
        """Place a step, if it has a place and the edge is known."""
        if self.frontier is None or self._edge.missing or attempt.control == NO_MOMENTUM:
            return
        part = trial.gradient
        if attempt.control in STEP_CONTROLS:  # its correction is of the whole step
            part = axpy(-1.0, self._plain.baseline, trial.direction)
        if norm(part) > 0:
            place = place_part(self._edge, part, self._along_plain, self._confidence)
            self.places[attempt.name] = place
