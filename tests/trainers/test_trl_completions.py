"""What TRL's trainer logs with `log_completions` is read as an update batch."""

import pandas as pd
import pytest
from trl import GRPOTrainer

from isentrope.sampling.tasks.addition import character_tokenizer
from isentrope.trainers.trl_completions import read_trl_completions
from isentrope.verbs.batches import read_rollouts
from tests.sampling.conftest import tiny_policy
from tests.training.conftest import small_policy
from tests.training.runs import LENGTH, SIZE, trl_args


def frame(**columns):
    rows = {
        "step": [3] * 4,
        "prompt": ["1+1="] * 2 + ["2+2="] * 2,
        "completion": ["2", "333", "", "4"],
        "right": [1.0, 0.0, 0.0, 1.0],
        "advantage": [0.5, -0.5, -0.5, 0.5],
    }
    return pd.DataFrame({**rows, **columns})


@pytest.fixture
def policy():
    tokenizer = character_tokenizer()
    return tiny_policy(vocab_size=len(tokenizer), tokenizer=tokenizer)


def test_texts_become_groups_with_advantages(policy, tmp_path):
    frame().to_parquet(tmp_path / "completions_00003.parquet")
    batch = read_rollouts(policy, tmp_path / "completions_00003.parquet", 3)
    assert batch.prompt_index.tolist() == [0, 0, 1, 1]
    assert batch.rewards.tolist() == [1, 0, 0, 1]
    assert batch.advantages.tolist() == [0.5, -0.5, -0.5, 0.5]
    assert batch.lengths.tolist() == [2, 3, 1, 2]  # with EOS, but for the one that was cut
    assert [int(r[-1]) == policy.eos_token_id for r in batch.response_ids] == [1, 0, 1, 1]


def test_several_rewards_leave_the_advantage_alone(policy, tmp_path):
    frame(length=[1.0, 3.0, 0.0, 1.0]).to_parquet(tmp_path / "c.parquet")
    assert read_trl_completions(policy, tmp_path / "c.parquet").rewards is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"step": [3, 3, 4, 4]}, "2 training steps"),
        ({"completion": [[{"role": "assistant", "content": "2"}] * 2] * 4}, "has 2 turns"),
    ],
)
def test_what_cannot_be_told_from_texts_is_refused(policy, tmp_path, columns, message):
    frame(**columns).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(ValueError, match=message):
        read_trl_completions(policy, tmp_path / "c.parquet")


def test_a_file_that_trl_wrote_is_read(tmp_path):
    base = small_policy()
    rows = [{"prompt": f"{i}+1="} for i in range(4)]
    trainer = GRPOTrainer(
        model=base.model,
        reward_funcs=lambda completions, **_: [float(c[:1].isdigit()) for c in completions],
        args=trl_args(tmp_path, 1, log_completions=True, save_strategy="no"),
        train_dataset=__import__("datasets").Dataset.from_list(rows),
        processing_class=base.tokenizer,
    )
    trainer.train()
    (file,) = (tmp_path / "completions").glob("*.parquet")
    batch = read_trl_completions(base, file, LENGTH)
    assert len(batch) == len(batch.advantages) == 4 * SIZE
    assert batch.n_prompts == 4
