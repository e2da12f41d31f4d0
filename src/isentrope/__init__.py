"""isentrope: how far, and why, one optimizer step moves the entropy of a language-model policy."""

from isentrope import oracle
from isentrope._version import __version__
from isentrope.attribution.fisher.kernel import FisherKernel, fisher_kernel
from isentrope.attribution.influence.influence import influence
from isentrope.attribution.noise.scale import noise_scale
from isentrope.estimate import Estimate
from isentrope.estimators.arrays import estimate_entropy_change
from isentrope.estimators.entropy import entropy, surprisal_entropy
from isentrope.estimators.entropy_change import EntropyChange, entropy_change
from isentrope.estimators.entropy_gradient import entropy_gradient
from isentrope.estimators.resampled import resampled_entropy_change
from isentrope.evaluation.entropy_law import EntropyLaw, fit_entropy_law
from isentrope.evaluation.evaluate import Evaluation, evaluate
from isentrope.evaluation.pass_at_k import pass_at_k
from isentrope.pipelines.legacy import EntropyMeasurements
from isentrope.policy.language_model import Policy
from isentrope.policy.precision import Precision
from isentrope.policy.scoring import score
from isentrope.policy.token_statistics import Scores
from isentrope.probe.callback import EntropyProbe
from isentrope.rollouts import Rollouts
from isentrope.sampling.advantages import with_advantages, with_rewards
from isentrope.sampling.generate import sample
from isentrope.sampling.tasks import load_task
from isentrope.update.step import Step, optimizer_step

__all__ = [
    "EntropyChange",
    "EntropyLaw",
    "EntropyMeasurements",
    "EntropyProbe",
    "Estimate",
    "Evaluation",
    "FisherKernel",
    "Policy",
    "Precision",
    "Rollouts",
    "Scores",
    "Step",
    "__version__",
    "entropy",
    "entropy_change",
    "entropy_gradient",
    "estimate_entropy_change",
    "evaluate",
    "fisher_kernel",
    "fit_entropy_law",
    "influence",
    "load_task",
    "noise_scale",
    "optimizer_step",
    "oracle",
    "pass_at_k",
    "resampled_entropy_change",
    "sample",
    "score",
    "surprisal_entropy",
    "with_advantages",
    "with_rewards",
]
