"""The toy run: fine-tune the toy policy, then train it by reinforcement, leaving real checkpoints.

<folder>/base_model/                 the fine-tuned policy
<folder>/training_state/step_N/      adapter, AdamW state, settings
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from isentrope.policy.language_model import Policy
from isentrope.sampling.tasks.addition import Addition, longest_response
from isentrope.training.checkpoints import save_base_model
from isentrope.training.reference_loop import reference_loop
from isentrope.training.sft import fine_tune
from isentrope.training.toy import build_toy_policy, with_lora

DIGITS = 2
MAX_NEW_TOKENS = longest_response(DIGITS)
"""Longest response of the toy task, and the constant length L of its Dr. GRPO loss."""


def fine_tune_toy(
    folder: str | Path,
    *,
    steps: int = 400,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Policy:
    """Make the toy policy, teach it two-digit addition, and save it as `base_model`.

    Args:
        folder: Run folder.
        steps: Supervised steps.
        seed: Fixes weights and demonstrations.
        progress: Called with (done, in all) after each step.

    Returns:
        The policy with a fresh adapter, ready for `train_toy`.
    """
    policy = build_toy_policy(seed)
    fine_tune(policy, Addition("train", digits=DIGITS), seed=seed, steps=steps, progress=progress)
    save_base_model(policy, Path(folder) / "base_model")
    return with_lora(policy, seed=seed)


def train_toy(
    policy: Policy,
    folder: str | Path,
    *,
    steps: int = 20,
    save_every: int = 10,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> list[dict[str, float]]:
    """Train a fine-tuned toy policy by Dr. GRPO, in place.

    Args:
        policy: What `fine_tune_toy` returned.
        folder: The same run folder.
        steps: Updates.
        save_every: Steps between checkpoints.
        seed: Fixes every batch.
        progress: Called with (done, in all) after each step.

    Returns:
        The metrics of each step.
    """
    return reference_loop(
        policy,
        Addition("train", digits=DIGITS),
        folder,
        steps=steps,
        max_new_tokens=MAX_NEW_TOKENS,
        save_every=save_every,
        seed=seed,
        progress=lambda metrics: progress(int(metrics["step"]), steps),
    )
