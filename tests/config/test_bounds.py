"""Counts of work are bounded: no setting asks for what never ends."""

import pytest

from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import ConfigError, load_config
from isentrope.config.keys import all_keys
from isentrope.config.measure import MeasureConfig
from isentrope.config.train import SftConfig, TrainConfig

ROOTS = {
    MeasureConfig: {"checkpoint": {"checkpoint_path": "x"}},
    EvaluateConfig: {"checkpoint": {"checkpoint_path": "x"}},
    TrainConfig: {"model": {"path": "toy"}},
    SftConfig: {"model": {"path": "toy"}},
}
NO_WORK = {
    *("seed", "first_repeat", "repeat", "every", "log_every", "save_every", "rollouts_every"),
    *("keep_last", "keep_every", "max_files", "half_life", "warmup_steps", "groups"),
    *("max_response_length", "max_new_tokens", "max_length", "max_tokens", "vocab_chunk"),
    *("batch_size", "micro_batch", "chunk_prompts", "rank", "lora_rank", "top_k"),
}
"""Whole numbers that may be large: sizes, limits, intervals, and which one of many."""


def accepted(root, key, value):
    try:
        load_config(ROOTS[root], [f"{key}={value}"], root=root)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("root", ROOTS)
def test_a_whole_number_is_bounded_where_each_one_is_work(root):
    unbounded = {
        key.rpartition(".")[2]
        for key in all_keys(root)
        if accepted(root, key, 2 * 10**9) and not accepted(root, key, 1.5)
    }
    assert unbounded <= NO_WORK


@pytest.mark.parametrize(
    ("root", "counts"),
    [
        (MeasureConfig, ("batch_config.B_E", "batch_config.G_E")),
        (MeasureConfig, ("batch_config.B_U", "batch_config.G")),
        (TrainConfig, ("training.prompts_per_step", "training.group_size")),
    ],
)
def test_two_counts_are_bounded_together(root, counts):
    changes = [f"{key}=10000" for key in counts]
    with pytest.raises(ConfigError, match="are more than 10000000 sequences"):
        load_config(ROOTS[root], changes, root=root)
