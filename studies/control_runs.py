"""One training run of the toy for `control_tasks` and `control_study`, and what it is worth.

Runs are made by the library as `isentrope train` makes them, without probe, noise scale, trackers
and rollout tables. A run ends when the tokens that it generated, redraws included, and the tokens
of the control's own samples have reached a budget; the checkpoint nearest to it is evaluated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from examples.tasks import countdown, split
from examples.tasks.shortcut import style_of
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.evaluation.pass_at_k import prompt_scores
from isentrope.policy.language_model import Policy
from isentrope.sampling.advantages import with_rewards
from isentrope.sampling.generate import respond
from isentrope.sampling.prompt import Prompt
from isentrope.sampling.prompts import as_prompts
from isentrope.sampling.tasks.addition import longest_response
from isentrope.sampling.tasks.load import load_task
from isentrope.sampling.tasks.task import Task, limited
from isentrope.system.progress import Progress
from isentrope.training.models import load_trainable
from isentrope.training.run_files import RunFiles
from isentrope.verbs.sft import sft
from isentrope.verbs.train import train

MAX_NEW_TOKENS = longest_response(2)

GROUP_SIZE, SAVE_EVERY = 8, 5
LORA = {"lora_rank": 16, "lora_alpha": 32}
K = 64
"""Of pass@k."""
TASKS = Path(__file__).parents[1] / "examples" / "tasks"


@runtime_checkable
class ManyAnswers(Protocol):
    """A task whose prompts have several correct answers, all of them known."""

    def answer(self, response_text: str, reference: str | None) -> str | None:
        """Canonical form of the answer that a response gives; None where it is not correct."""
        ...

    def answers(self, reference: str) -> frozenset[str]:
        """Canonical forms of all correct answers to the prompt with this reference."""
        ...


@dataclass(frozen=True)
class Setting:
    """How a task is run.

    Attributes:
        length: Longest response in tokens, EOS counted.
        options: Options of the task, its dial among them.
        steps: Steps of a vanilla run; its tokens are the budget of the other runs.
        fine_tuning: Steps of supervised fine-tuning.
        learning_rate: Of training.
    """

    length: int
    options: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 120
    fine_tuning: int = 400
    learning_rate: float = 1e-3


SETTINGS = {
    "split": Setting(split.LONGEST, fine_tuning=600),
    "shortcut": Setting(MAX_NEW_TOKENS, {"rare": 0.1, "plain": 0.8}, steps=240, fine_tuning=500),
    "relay": Setting(MAX_NEW_TOKENS),
    "countdown": Setting(countdown.LONGEST, steps=240),
}


def named(task: str) -> str:
    """What a configuration calls the task."""
    return f"{TASKS / task}.py:{task.capitalize()}"


def fine_tuned(task: str, folder: Path) -> Path:
    """The model that all runs of a task start from; made if it is not there."""
    setting = SETTINGS[task]
    target = folder / f"sft_{task}"
    if not (target / "model").exists():
        sections = {
            "model": {"path": "toy", "lora_rank": 0},
            "data": {"dataset_name": named(task), "dataset_options": dict(setting.options)},
            "fine_tuning": {
                "steps": setting.fine_tuning,
                "batch_size": 64,
                "learning_rate": 2e-3,
                "warmup_steps": 20,
            },
            "output": {"directory": str(target), "report_to": [], "log_level": "WARNING"},
        }
        sft(SftConfig.model_validate(sections))
    return target / "model"


def configuration(
    task: str, start: Path, folder: Path, seed: int, changes: Mapping[str, Any] | None = None
) -> TrainConfig:
    """The configuration of a run, with sections changed key by key."""
    setting = SETTINGS[task]
    sections: dict[str, dict[str, Any]] = {
        "model": {"path": str(start), **LORA},
        "data": {"dataset_name": named(task), "dataset_options": dict(setting.options)},
        "sampling": {"max_new_tokens": setting.length, "batch_size": 512},
        "training": {
            "steps": setting.steps,
            "learning_rate": setting.learning_rate,
            "prompts_per_step": 16,
            "group_size": GROUP_SIZE,
            "save_every": SAVE_EVERY,
            "redraw_limit": 40,
            "seed": seed,
        },
        "entropy_probe": {"enabled": False},
        "noise_scale": {"enabled": False},
        "output": {
            "directory": str(folder),
            "report_to": [],
            "rollouts_every": 0,
            "log_level": "ERROR",
        },
    }
    for name, values in (changes or {}).items():
        sections[name] = sections.get(name, {}) | dict(values)
    return TrainConfig.model_validate(sections)


class BudgetSpent(Exception):
    """A run has generated its tokens."""


def generated(metrics: Mapping[str, float]) -> float:
    """Tokens that a step generated: the mean length is that of the groups that were kept."""
    own = metrics.get("control/tokens", 0.0)
    return metrics["drawn"] * GROUP_SIZE * metrics["length"] + own


class Budget(Progress):
    """Ends a run at the first checkpoint by which its tokens are spent."""

    def __init__(self, tokens: float, save_every: int) -> None:
        super().__init__()
        self._left, self._save_every = tokens, save_every

    def training(self, steps: int) -> Any:
        """Count the tokens of each step.

        Args:
            steps: Steps of the run.

        Returns:
            Called with the metrics of each step; raises `BudgetSpent`.
        """

        def observe(metrics: dict[str, float]) -> None:
            saved = (int(metrics["step"]) - 1) % self._save_every == 0  # the step before this
            if self._left <= 0 and saved:
                raise BudgetSpent
            self._left -= generated(metrics)

        return observe


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        checkpoints: By step, those that are kept.
        lines: Metrics of every step.
        ended: "steps", "budget", or why no further step was possible.
        seconds: Wall time of the training.
    """

    checkpoints: Mapping[int, Path]
    lines: Sequence[Mapping[str, float]]
    ended: str
    seconds: float

    def tokens(self, step: int) -> float:
        """Tokens generated by the end of a step."""
        return sum(generated(line) for line in self.lines if line["step"] <= step)

    def at(self, budget: float) -> int:
        """The checkpoint whose tokens are nearest to a budget; the last one if there is none."""
        if budget == float("inf"):
            return max(self.checkpoints)
        return min(self.checkpoints, key=lambda step: abs(self.tokens(step) - budget))


def run(config: TrainConfig, budget: float = float("inf")) -> Run:
    """Train until the steps are done or the tokens spent."""
    begun, ended = time.perf_counter(), "steps"
    try:
        with Budget(budget, config.training.save_every):
            train(config)
    except BudgetSpent:
        ended = "budget"
    except ValueError as error:  # no group with an advantage is left: the task is solved, or lost
        if "have an advantage" not in str(error) and "training set has" not in str(error):
            raise
        ended = str(error)
    files = RunFiles(str(config.output.directory))
    written = files.metrics.read_text() if files.metrics.exists() else ""  # no step was possible
    lines = [json.loads(line) for line in written.splitlines()]
    checkpoints = {step: files.checkpoint(step) for step in files.steps()}
    return Run(checkpoints, lines, ended, time.perf_counter() - begun)


def load(model: Path, temperature: float = 1.0) -> Policy:
    """A policy from a checkpoint or from the fine-tuned model, in float32."""
    if (model / "adapter_config.json").exists():
        policy = Policy.from_checkpoint(model, precision="float32")
        loaded, tokenizer = policy.model, policy.tokenizer
    else:
        loaded, tokenizer = load_trainable(str(model), lora_rank=0, lora_alpha=1)
    return Policy(loaded, tokenizer, temperature=temperature, precision="float32")


def evaluate(
    policy: Policy,
    task: Task,
    prompts: Sequence[Prompt],
    length: int,
    *,
    samples: int = 256,
    seed: int = 90_000,
) -> dict[str, float | None]:
    """What a policy does on held-out prompts; all policies read the same uniforms.

    Args:
        policy: The policy.
        task: Its rewards, and its correct answers where they can be enumerated.
        prompts: Held-out prompts.
        length: Longest response in tokens.
        samples: Responses per prompt.
        seed: Fixes the uniforms.

    Returns:
        Means over prompts: `pass_1`, `pass_64` (unbiased, None with fewer samples), `reward`,
        `coverage` (distinct correct answers among `samples` over all of them; None where they
        cannot be enumerated), `long` (share of responses in the style "long"), and `entropy` in
        nats per token.
    """
    generator = torch.Generator().manual_seed(seed)
    correct: list[int] = []
    rewards: list[float] = []
    covered: list[float] = []
    long, entropies = 0, []
    for prompt in as_prompts(policy, list(prompts)):
        drawn = respond(
            policy, [prompt], samples, generator, max_new_tokens=length, batch_size=samples
        )
        rewarded = with_rewards(drawn, task).rewards
        assert rewarded is not None
        correct.append(int((rewarded > 0).sum()))
        rewards.append(float(rewarded.mean()))
        texts = drawn.response_texts or []
        long += sum(style_of(text) == "long" for text in texts)
        entropies += drawn.sampler_entropies or []
        if isinstance(task, ManyAnswers):
            found = {task.answer(text, prompt.reference) for text in texts} - {None}
            covered.append(len(found) / len(task.answers(str(prompt.reference))))
    n, c = torch.full((len(correct),), samples), torch.tensor(correct)
    return {
        "pass_1": float(c.double().mean()) / samples,
        f"pass_{K}": float(prompt_scores(n, c, K).mean()) if samples >= K else None,
        "reward": sum(rewards) / len(rewards),
        "coverage": sum(covered) / len(covered) if covered else None,
        "long": long / (samples * len(correct)),
        "entropy": float(torch.cat(entropies).mean()),
    }


def held_out(task: str, count: int, **options: Any) -> tuple[Task, list[Prompt]]:
    """A task's test split, and so many of its prompts in seeded order."""
    found = load_task(named(task), "test", **(dict(SETTINGS[task].options) | options))
    return found, limited(found.prompts, min(count, len(found.prompts)), seed=0)
