"""isentrope: how far, and why, one optimizer step moves the entropy of a language-model policy.

Every name is imported when it is first used, so `import isentrope` alone loads no torch.
"""

from typing import TYPE_CHECKING

from isentrope._lazy import lazily
from isentrope._version import __version__

_HOMES = {
    # What a policy says, and the batches it says it in
    "Policy": "isentrope.policy.language_model",
    "Precision": "isentrope.models.precision",
    "Scores": "isentrope.policy.token_statistics",
    "score": "isentrope.policy.scoring",
    "Rollouts": "isentrope.nouns.rollouts",
    "sample": "isentrope.sampling.generate",
    "Prompt": "isentrope.sampling.prompts",
    "Task": "isentrope.sampling.tasks.task",
    "load_task": "isentrope.sampling.tasks",
    "with_rewards": "isentrope.sampling.advantages",
    "with_advantages": "isentrope.sampling.advantages",
    # The step of an optimizer
    "Step": "isentrope.update.step",
    "optimizer_step": "isentrope.verbs.training_step",
    # Entropy, its change and its gradient
    "Estimate": "isentrope.nouns.estimate",
    "EntropyChange": "isentrope.estimators.entropy_change",
    "entropy_change": "isentrope.estimators.entropy_change",
    "resampled_entropy_change": "isentrope.estimators.resampled",
    "estimate_entropy_change": "isentrope.estimators.arrays",
    "entropy": "isentrope.estimators.entropy",
    "surprisal_entropy": "isentrope.estimators.entropy",
    "entropy_gradient": "isentrope.estimators.entropy",
    "EstimatorOptions": "isentrope.estimators.functional",
    # What the change is made of
    "Influence": "isentrope.attribution.influence.contributions",
    "influence": "isentrope.attribution.influence.influence",
    "influence_shares": "isentrope.attribution.influence.shares",
    "InfluenceOptions": "isentrope.attribution.influence.influence",
    "audit": "isentrope.attribution.proxies.audit",
    "AuditOptions": "isentrope.attribution.proxies.audit",
    "GradientOptions": "isentrope.attribution.gradients.storage_plan",
    "FisherKernel": "isentrope.attribution.fisher.kernel",
    "fisher_kernel": "isentrope.attribution.fisher.kernel",
    "NoiseScale": "isentrope.attribution.noise.scale",
    "noise_scale": "isentrope.attribution.noise.scale",
    "entropy_noise_scale": "isentrope.attribution.noise.consequences",
    # While training, and after it
    "EntropyProbe": "isentrope.probe.callback",
    "EntropyBudget": "isentrope.control.budget",
    "BudgetOptions": "isentrope.control.requirements",
    "Target": "isentrope.control.feedback",
    "ProbeOptions": "isentrope.probe.requirements",
    "EntropyMeasurements": "isentrope.verbs.measure",
    "Evaluation": "isentrope.evaluation.evaluate",
    "EvaluationOptions": "isentrope.evaluation.evaluate",
    "evaluate": "isentrope.evaluation.evaluate",
    "pass_at_k": "isentrope.evaluation.metrics",
    "EntropyLaw": "isentrope.evaluation.entropy_law",
    "fit_entropy_law": "isentrope.evaluation.entropy_law",
    # Policies whose every response can be enumerated
    "oracle": "isentrope.oracle",
}
"""Each public name, and the module it is imported from."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
else:
    from isentrope import oracle
    from isentrope.attribution.fisher.kernel import FisherKernel, fisher_kernel
    from isentrope.attribution.gradients.storage_plan import GradientOptions
    from isentrope.attribution.influence.contributions import Influence
    from isentrope.attribution.influence.influence import InfluenceOptions, influence
    from isentrope.attribution.influence.shares import influence_shares
    from isentrope.attribution.noise.consequences import entropy_noise_scale
    from isentrope.attribution.noise.scale import NoiseScale, noise_scale
    from isentrope.attribution.proxies.audit import AuditOptions, audit
    from isentrope.control.budget import EntropyBudget
    from isentrope.control.feedback import Target
    from isentrope.control.requirements import BudgetOptions
    from isentrope.estimators.arrays import estimate_entropy_change
    from isentrope.estimators.entropy import entropy, entropy_gradient, surprisal_entropy
    from isentrope.estimators.entropy_change import EntropyChange, entropy_change
    from isentrope.estimators.functional import EstimatorOptions
    from isentrope.estimators.resampled import resampled_entropy_change
    from isentrope.evaluation.entropy_law import EntropyLaw, fit_entropy_law
    from isentrope.evaluation.evaluate import Evaluation, EvaluationOptions, evaluate
    from isentrope.evaluation.metrics import pass_at_k
    from isentrope.models.precision import Precision
    from isentrope.nouns.estimate import Estimate
    from isentrope.nouns.rollouts import Rollouts
    from isentrope.policy.language_model import Policy
    from isentrope.policy.scoring import score
    from isentrope.policy.token_statistics import Scores
    from isentrope.probe.callback import EntropyProbe
    from isentrope.probe.requirements import ProbeOptions
    from isentrope.sampling.advantages import with_advantages, with_rewards
    from isentrope.sampling.generate import sample
    from isentrope.sampling.prompts import Prompt
    from isentrope.sampling.tasks import load_task
    from isentrope.sampling.tasks.task import Task
    from isentrope.update.step import Step
    from isentrope.verbs.measure import EntropyMeasurements
    from isentrope.verbs.training_step import optimizer_step

__all__ = [
    "AuditOptions",
    "BudgetOptions",
    "EntropyBudget",
    "EntropyChange",
    "EntropyLaw",
    "EntropyMeasurements",
    "EntropyProbe",
    "Estimate",
    "EstimatorOptions",
    "Evaluation",
    "EvaluationOptions",
    "FisherKernel",
    "GradientOptions",
    "Influence",
    "InfluenceOptions",
    "NoiseScale",
    "Policy",
    "Precision",
    "ProbeOptions",
    "Prompt",
    "Rollouts",
    "Scores",
    "Step",
    "Target",
    "Task",
    "__version__",
    "audit",
    "entropy",
    "entropy_change",
    "entropy_gradient",
    "entropy_noise_scale",
    "estimate_entropy_change",
    "evaluate",
    "fisher_kernel",
    "fit_entropy_law",
    "influence",
    "influence_shares",
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
