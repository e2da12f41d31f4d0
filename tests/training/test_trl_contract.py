"""What we rely on in TRL; each test names what our trainer would do wrong without it."""

import inspect

import pytest
import torch
from transformers import Trainer

from isentrope import Policy
from isentrope.policy.gradient import weighted_gradient
from isentrope.update.objective import token_weights
from tests.training import runs

trl = pytest.importorskip("trl")
SIGNATURES = {
    "_prepare_inputs": ["self", "generation_batch"],
    "_generate_and_score_completions": ["self", "inputs"],
    "_generate": ["self", "prompts"],
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "_compute_loss": ["self", "model", "inputs"],
    "_get_grad_norm": ["self", "model", "grad_norm"],
    "_get_output_dir": ["self", "trial"],
    "_save_checkpoint": ["self", "model", "trial"],
    "training_step": ["self", "model", "inputs", "num_items_in_batch"],
    "log": ["self", "logs", "start_time"],
    "get_train_dataloader": ["self"],
    "create_model_card": None,
    "_send_telemetry": ["self"],
    "_wrap_model": ["self", "model", "training", "dataloader"],
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_method_that_is_overridden_is_there_with_its_arguments(name):
    found = list(inspect.signature(getattr(trl.GRPOTrainer, name)).parameters)
    assert SIGNATURES[name] is None or found == SIGNATURES[name]


@pytest.fixture
def made(tmp_path):
    return runs.trainer(tmp_path, max_grad_norm=1.0)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Our trainer, TRL's own over its model, and a batch."""
    made = runs.trainer(tmp_path_factory.mktemp("both"), max_grad_norm=1.0)
    made.model.train()
    return made, plain(made), made._generate_and_score_completions([])


def plain(made):
    """TRL's own trainer over the same model."""
    from datasets import Dataset

    return trl.GRPOTrainer(
        made.policy.model,
        lambda completions, **_: [0.0] * len(completions),
        args=runs.trl_args(made.files.folder / "plain", save_strategy="no"),
        train_dataset=Dataset.from_dict({"prompt": ["1+1=", "2+1="] * 8}),
        processing_class=made.policy.tokenizer,
    )


def test_a_batch_has_the_fields_that_the_loss_reads(made):
    made.model.train()
    batch = made._generate_and_score_completions([])
    expected = {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages"}
    assert set(batch) == expected | {"num_items_in_batch", "sampling_per_token_logps"}
    U = made.batch.rollouts
    torch.testing.assert_close(batch["advantages"].double(), U.advantages, rtol=0, atol=1e-6)
    lengths = batch["completion_mask"].sum(1)
    assert lengths.tolist() == U.lengths.tolist()
    for i, response in enumerate(U.response_ids):
        assert batch["completion_ids"][i, : len(response)].tolist() == response.tolist()


@pytest.mark.parametrize(
    "objective", ["dr_grpo", "grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"]
)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_our_gradient_is_that_of_trls_loss(both, objective, level):
    made, trainer, batch = both
    trainer.model.zero_grad()
    trainer.loss_type, trainer.current_gradient_accumulation_steps = objective, 1
    trainer.args.steps_per_generation, trainer.importance_sampling_level = 1, level
    trainer.model.train()
    trainer._compute_loss(trainer.model, batch).backward()
    theirs = {
        n: -p.grad.double() for n, p in trainer.model.named_parameters() if p.grad is not None
    }
    policy = Policy(made.policy.model, made.policy.tokenizer, precision="as_is")
    U = made.batch.rollouts
    cap = trainer.epsilon_high  # 0.2, unless given
    ours = weighted_gradient(policy, U, token_weights(U, objective, clip_high=cap))
    assert set(theirs) == set(ours)
    assert runs.relative(theirs, ours) < 1e-5


def test_the_optimizer_holds_trainable_parameters_in_the_models_order(made):
    made.create_optimizer()
    names = {id(p): n for n, p in made.policy.model.named_parameters()}
    held = [[names[id(p)] for p in group["params"]] for group in made.optimizer.param_groups]
    decayed = set(Trainer.get_decay_parameter_names(made, made.policy.model))
    assert held[0] == [n for n in made.policy.names if n in decayed]
    assert [n for group in held for n in group] == list(made.policy.names)


def test_the_temperature_is_that_of_the_loss(tmp_path):
    made = runs.trainer(tmp_path, temperature=0.5)
    made.model.train()
    made._generate_and_score_completions([])
    U, policy = made.batch.rollouts, made.policy
    assert policy.temperature == 0.5
    ids = torch.cat([U.prompt_ids[0], U.response_ids[0]])[None]
    keep = len(U.response_ids[0])
    theirs, entropies, _ = made._get_per_token_logps_and_entropies(
        made.model, ids, torch.ones_like(ids), keep, compute_entropy=True
    )
    sampler = U.sampler_logprobs[0].float()
    torch.testing.assert_close(theirs[0].detach(), sampler, rtol=0, atol=1e-5)
    assert entropies.shape == theirs.shape
