"""Responses without a reward: advantages as TRL has them, files, and a run that trains on some."""

import math

import pytest
import torch
from datasets import Dataset

import isentrope as ise
from isentrope import with_advantages
from isentrope.estimators.positions import position_classes
from tests import cases
from tests.probe import following
from tests.training import runs

PATTERN = [
    *(None, 1.0, 0.0, 2.0),
    *(None, None, 3.0, None),
    *(None, None, None, None),
    *(0.25, 0.25, None, 0.25),
    *(1.0, None, 0.0, None),
    *(0.1, 0.7, 0.4, None),
]
"""Groups of four: with a baseline of those that are scored, with one scored alone, with none."""


def trained_by_trl(folder, rule):
    """The advantages of one step of TRL's own trainer on these rewards."""
    from trl import GRPOTrainer, RLOOConfig, RLOOTrainer

    scale = "none" if rule == "dr_grpo" else "group"
    sizes = {"per_device_train_batch_size": len(PATTERN), "gradient_accumulation_steps": 1}
    args = runs.trl_args(folder / "out", 1, scale_rewards=scale, save_strategy="no", **sizes)
    kind = GRPOTrainer
    if rule == "rloo":
        kind = RLOOTrainer
        fields = ("num_generations", "max_completion_length", "report_to", "use_cpu", "bf16")
        same = {name: getattr(args, name) for name in (*fields, *sizes)}
        args = RLOOConfig(str(folder / "out"), max_steps=1, save_strategy="no", beta=0.0, **same)
    policy = following.adapted(folder)
    made = kind(
        policy.model,
        lambda completions, **_: PATTERN,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": following.PROMPTS * 2}),
        processing_class=policy.tokenizer,
    )
    made.train()
    return torch.tensor(list(made._logs["advantages"])).double()


@pytest.mark.parametrize("rule", ["grpo", "dr_grpo", "rloo"])
def test_advantages_are_those_of_trl(tmp_path, rule, caplog):
    n = len(PATTERN)
    ids = [torch.tensor([1 + i // 4]) for i in range(n)]
    U = ise.Rollouts(ids, [torch.tensor([2])] * n, torch.arange(n) // 4)
    U = ise.with_rewards(U, lambda _: PATTERN, unscored=True)
    ours = with_advantages(U, rule).advantages
    torch.testing.assert_close(ours, trained_by_trl(tmp_path, rule), rtol=1e-5, atol=1e-7)
    assert "12 of 24 responses of the update batch have the advantage 0" in caplog.text


def test_a_reward_of_none_is_kept_by_files(tmp_path):
    U = cases.ragged(4).with_columns(rewards=[1.0, math.nan, 0.0, 0.5])
    loaded = ise.Rollouts.load(U.save(tmp_path / "U.parquet"))
    torch.testing.assert_close(loaded.rewards, U.rewards, equal_nan=True)


def test_a_prompt_is_solved_by_what_the_scored_others_earn():
    E = cases.ragged(3)
    two = ise.Rollouts([E.prompt_ids[0]] * 3, E.response_ids, torch.zeros(3))
    two = two.with_columns(rewards=[1.0, math.nan, 0.0])
    classes = position_classes(two, torch.zeros(two.mask.shape))
    assert classes["solved prompt"].any(1).tolist() == [False, False, True]
    assert classes["unsolved prompt"].any(1).tolist() == [True, True, False]


def test_a_run_trains_on_what_is_scored(tmp_path, monkeypatch):
    of_text = runs.Short.reward
    monkeypatch.setattr(
        runs.Short,
        "reward",
        lambda task, text, ref: math.nan if len(text) % 3 == 2 else of_text(task, text, ref),
    )
    runs.trainer(tmp_path, steps=2).train()
    for line in runs.lines(tmp_path):
        assert math.isfinite(line["reward"] + line["reward_kept"] + line["pass_rate"])
