"""A response ends at any of several tokens: those of the generation config and the tokenizer's."""

import json

import pytest
import torch

import isentrope as ise
from isentrope.checks.sampler import _check_eos
from isentrope.evaluation.responses import make_records
from isentrope.oracle.enumerate import enumerate_policy
from isentrope.sampling.tasks.custom import _response_ids
from tests.adapters import save_base_model, with_lora
from tests.tiny_checkpoint import as_made_elsewhere
from tests.training.conftest import Short, small_policy


@pytest.fixture
def base(tmp_path):
    """Three ends, as instruct models list them; the tokenizer names 1 alone."""
    return saved(tmp_path / "base", [5, 1, 7])


def saved(folder, ends):
    save_base_model(small_policy(), folder)
    as_made_elsewhere(folder)
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": ends}))
    return folder


def load(folder, **options):
    return ise.Policy.from_checkpoint(folder, precision="float64", **options)


def test_a_checkpoint_ends_where_its_generation_config_says_the_tokenizers_own_first(base):
    policy = load(base)
    assert policy.eos_token_ids == (1, 5, 7)
    assert policy.eos_token_id == 1
    assert load(base, eos_token_id=7).eos_token_ids == (7,)
    assert load(base, eos_token_id=(7, 5)).eos_token_ids == (7, 5)


@pytest.mark.parametrize(("ends", "found"), [(5, (1, 5)), (None, (1,)), ([1], (1,))])
def test_one_end_or_none_in_the_generation_config_joins_the_tokenizers(tmp_path, ends, found):
    assert load(saved(tmp_path / "base", ends)).eos_token_ids == found


def test_an_adapter_ends_where_its_base_does_and_so_does_trl(base, tmp_path):
    from datasets import Dataset
    from trl import GRPOTrainer

    from tests.training import runs

    adapted = with_lora(ise.Policy.from_checkpoint(base, precision="float32"), 2, seed=0)
    adapted.model.save_pretrained(tmp_path / "adapter")
    adapted.tokenizer.save_pretrained(tmp_path / "adapter")
    policy = load(tmp_path / "adapter")
    trainer = GRPOTrainer(
        adapted.model,
        lambda completions, **_: [0.0] * len(completions),
        args=runs.trl_args(tmp_path / "out", 1),
        train_dataset=Dataset.from_dict({"prompt": ["1+1="] * 4}),
        processing_class=adapted.tokenizer,
    )
    assert set(policy.eos_token_ids) == set(trainer.eos_token_ids) == {1, 5, 7}


def test_sampling_stops_at_each_end_and_keeps_it(base):
    policy = load(base)
    rollouts = ise.sample(policy, ["1+1=", "2+2="], 64, max_new_tokens=12, seed=0)
    last = {int(r[-1]) for r in rollouts.response_ids if len(r) < 12}
    assert last == {1, 5, 7}
    for response, text in zip(rollouts.response_ids, rollouts.response_texts, strict=True):
        assert not torch.isin(response[:-1], torch.tensor([1, 5, 7])).any()
        kept = response[:-1] if int(response[-1]) in (1, 5, 7) else response
        assert text == policy.tokenizer.decode(kept.tolist())
    assert _check_eos(policy, rollouts).passed
    cut = make_records(policy, rollouts, Short()).truncated
    assert cut.tolist() == [int(r[-1]) not in (1, 5, 7) for r in rollouts.response_ids]
    policy.eos_token_id = 1
    assert not _check_eos(policy, rollouts).passed


def test_every_response_is_counted_once_with_several_ends():
    from tests import cases

    policy = cases.policy("qwen2")
    policy.eos_token_ids = (0, 3)
    exact = enumerate_policy(policy, [[1, 2]], 3)
    assert float(exact.probabilities().sum()) == pytest.approx(1.0, abs=1e-12)
    for response in exact.rollouts.response_ids:
        assert not torch.isin(response[:-1], torch.tensor([0, 3])).any()


def test_a_finished_text_that_ends_in_an_end_gets_no_other(base):
    policy = load(base)
    for ending in (1, 5):
        token = policy.tokenizer.convert_ids_to_tokens(ending)
        ids = _response_ids(policy, {"response": f"9{token}"}, "here")
        assert ids[-1] == ending
        assert ids[-2] not in policy.eos_token_ids
