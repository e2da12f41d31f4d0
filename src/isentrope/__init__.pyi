"""The public names, and the modules that they are imported from when they are first used."""
# ruff: noqa: I001  grouped by what they are for

# What a policy says, and the batches it says it in
from isentrope.policy.language_model import Policy
from isentrope.models.precision import Precision
from isentrope.policy.token_statistics import Scores
from isentrope.policy.scoring import score
from isentrope.models.sharding import SpreadPoint
from isentrope.system.progress import ProgressCallback
from isentrope.policy.sampler_record import LogprobCheck, check_logprobs
from isentrope.nouns.rollouts import Rollouts
from isentrope.sampling.generate import sample
from isentrope.sampling.prompt import Prompt
from isentrope.sampling.tasks.task import Task
from isentrope.sampling.tasks.load import load_task
from isentrope.sampling.advantages import with_rewards, with_advantages

# A checkpoint, and the step from it
from isentrope.verbs.checkpoint import Checkpoint
from isentrope.checkpoint.step import CheckpointStep
from isentrope.checkpoint.facts import RecordedStep
from isentrope.checkpoint.infer.settings import Setting
from isentrope.checkpoint.infer.arguments import SavedArguments
from isentrope.update.step import Step
from isentrope.checkpoint.optimizer_step import optimizer_step

# Entropy, its change and its gradient
from isentrope.nouns.estimate import Estimate
from isentrope.estimators.entropy_change import EntropyChange, entropy_change
from isentrope.estimators.resampled import resampled_entropy_change
from isentrope.estimators.arrays import estimate_entropy_change
from isentrope.estimators.entropy import entropy, surprisal_entropy, entropy_gradient
from isentrope.estimators.options import EstimatorOptions

# What the change is made of
from isentrope.attribution.frontier.batches import frontier
from isentrope.attribution.frontier.frontier import Frontier
from isentrope.attribution.influence.contributions import Influence
from isentrope.attribution.influence.contributions import InfluenceOptions
from isentrope.attribution.influence.influence import influence
from isentrope.attribution.influence.projection import Shares, influence_shares
from isentrope.attribution.proxies.audit import Audit, audit, AuditOptions
from isentrope.attribution.gradients.sketch import Sketch
from isentrope.attribution.gradients.storage_plan import GradientOptions
from isentrope.attribution.fisher.kernel import FisherKernel, fisher_kernel
from isentrope.attribution.noise.scale import NoiseScale, noise_scale
from isentrope.attribution.noise.consequences import EntropyNoiseScale, entropy_noise_scale

# While training, and after it
from isentrope.probe.callback import EntropyProbe
from isentrope.control.budget import EntropyBudget
from isentrope.control.budget_options import BudgetOptions
from isentrope.control.feedback import Target
from isentrope.probe.options import ProbeOptions
from isentrope.from_notes import EntropyMeasurements
from isentrope.evaluation.evaluate import Evaluation, evaluate
from isentrope.evaluation.options import EvaluationOptions
from isentrope.evaluation.pass_at_k import pass_at_k
from isentrope.evaluation.entropy_law import EntropyLaw, fit_entropy_law

# What a verb found, read from its folder
from isentrope.results.results import Result, load_result
from isentrope.results.results import AuditResult, EntropiesResult, InfluenceResult, KernelResult
from isentrope.results.results import MeasureResult, NoiseResult, TrialResult, VarianceResult

# Policies whose every response can be enumerated
from isentrope import oracle

from isentrope._version import __version__

__all__ = [
    "Audit",
    "AuditOptions",
    "AuditResult",
    "BudgetOptions",
    "Checkpoint",
    "CheckpointStep",
    "EntropiesResult",
    "EntropyBudget",
    "EntropyChange",
    "EntropyLaw",
    "EntropyMeasurements",
    "EntropyNoiseScale",
    "EntropyProbe",
    "Estimate",
    "EstimatorOptions",
    "Evaluation",
    "EvaluationOptions",
    "FisherKernel",
    "Frontier",
    "GradientOptions",
    "Influence",
    "InfluenceOptions",
    "InfluenceResult",
    "KernelResult",
    "LogprobCheck",
    "MeasureResult",
    "NoiseResult",
    "NoiseScale",
    "Policy",
    "Precision",
    "ProbeOptions",
    "ProgressCallback",
    "Prompt",
    "RecordedStep",
    "Result",
    "Rollouts",
    "SavedArguments",
    "Scores",
    "Setting",
    "Shares",
    "Sketch",
    "SpreadPoint",
    "Step",
    "Target",
    "Task",
    "TrialResult",
    "VarianceResult",
    "__version__",
    "audit",
    "check_logprobs",
    "entropy",
    "entropy_change",
    "entropy_gradient",
    "entropy_noise_scale",
    "estimate_entropy_change",
    "evaluate",
    "fisher_kernel",
    "fit_entropy_law",
    "frontier",
    "influence",
    "influence_shares",
    "load_result",
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
