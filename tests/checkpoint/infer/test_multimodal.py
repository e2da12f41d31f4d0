"""Runs of a multimodal wrapper on text: its vision tower gets no gradient, and is not trained."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import Gemma3Config, Gemma3ForConditionalGeneration
from typer.testing import CliRunner

import isentrope as ise
from isentrope.cli.main import app
from isentrope.sampling.tasks.addition import character_tokenizer
from isentrope.update.optimizer_state import load_optimizer_state
from tests.probe import following

TEXT = {
    **{"vocab_size": 18, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 32},
    **{"max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None},
    "initializer_range": 0.25,
}
VISION = {
    **{"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "image_size": 16, "patch_size": 8},
}


def gemma():
    torch.manual_seed(0)
    tokens = {"image_token_index": 17, "boi_token_index": 15, "eoi_token_index": 16}
    config = Gemma3Config(text_config=TEXT, vision_config=VISION, mm_tokens_per_image=4, **tokens)
    return Gemma3ForConditionalGeneration(config).eval()


def trained(folder, adapted):
    """Two steps of TRL with a probe that records them; every step is saved."""
    from trl import GRPOConfig, GRPOTrainer

    gemma().save_pretrained(folder / "base")
    character_tokenizer().save_pretrained(folder / "base")
    args = GRPOConfig(
        output_dir=str(folder),
        max_steps=2,
        num_generations=4,
        max_completion_length=6,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        save_steps=1,
        use_cpu=True,
        bf16=False,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        str(folder / "base"),
        lambda completions, **_: [float(len(text) % 3) for text in completions],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": following.PROMPTS * 4}),
        processing_class=character_tokenizer(),
        peft_config=LoraConfig(r=2, target_modules=["q_proj", "v_proj"]) if adapted else None,
    )
    probe = ise.EntropyProbe(["1+2=", "5+4="], every=1, size=16, record=True).attach(trainer)
    following.run(trainer)
    return probe


@pytest.mark.parametrize("adapted", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_step_of_a_wrapper_is_the_one_that_training_took(tmp_path, adapted):
    probe = trained(tmp_path, adapted)
    assert not probe.off
    assert len(probe.history) == 2
    first, second = (tmp_path / f"checkpoint-{k}" for k in (1, 2))
    policy = ise.Policy.from_checkpoint(first)
    after = ise.Policy.from_checkpoint(second).theta
    U = ise.Rollouts.load(first / "next_update" / "rollouts.parquet")
    step = ise.optimizer_step(policy, U, first, objective="recorded")
    taken = {n: (after[n] - p) / 1e-3 for n, p in policy.theta.items()}
    still = {n for n in policy.names if "vision_tower" in n or "multi_modal" in n}
    assert still
    assert all(not step.direction[n].any() for n in still)
    assert any("state beside others" in note for note in step.warnings)
    flat = [torch.cat([x[n].flatten() for n in policy.names]) for x in (step.direction, taken)]
    assert float((flat[0] - flat[1]).norm() / flat[1].norm()) < 1e-3
    assert ise.entropy_change(policy, U, step.direction, [1e-3]).first_order.se > 0
    checked = CliRunner().invoke(app, ["check", str(first)])
    assert checked.exit_code == 0
    assert "Can be measured" in checked.output


def test_a_parameter_without_a_state_that_the_batch_has_a_gradient_of_is_refused(tmp_path):
    trained(tmp_path, False)
    folder = tmp_path / "checkpoint-1"
    policy = ise.Policy.from_checkpoint(folder)
    saved = torch.load(folder / "optimizer.pt")
    U = ise.Rollouts.load(folder / "next_update" / "rollouts.parquet")
    state = load_optimizer_state(policy, saved)
    used = next(n for n in policy.names if "language_model" in n)
    names = [n for n in policy.names if n in state.untrained]
    assert used not in names
    order = list(saved["state"])
    lost = {**saved, "state": {k: saved["state"][k] for k in order[1:]}}
    with pytest.raises(ValueError, match="has a gradient for parameter"):
        ise.optimizer_step(policy, U, lost, objective="recorded")
    empty = {**saved, "state": {}}
    torch.save(empty, folder / "optimizer.pt")
    with pytest.raises(ValueError, match="empty optimizer state"):
        load_optimizer_state(policy, folder)


def test_its_tokenizer_and_its_weights_are_those_of_text(tmp_path):
    gemma().save_pretrained(tmp_path)
    policy = ise.Policy.from_checkpoint(tmp_path)
    assert (policy.vocabulary, policy.context) == (18, 64)
    drawn = ise.sample(policy, [[3, 4]], 4, max_new_tokens=5)
    scores = ise.score(policy, drawn)
    assert torch.allclose(scores.logprobs, drawn.padded("sampler_logprobs"), atol=1e-9)
    assert load_file(tmp_path / "model.safetensors")
