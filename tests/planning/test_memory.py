"""What shapes say of a training: counted parameters, a pass without weights, a cache."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl.kernels.chunked_logprob import TOKEN_CHUNK_SIZE, ChunkedLogProbFunction
from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

from isentrope import Policy
from isentrope.config.io import load_any, load_config
from isentrope.config.stages import SamplingConfig
from isentrope.config.train import TrainConfig
from isentrope.planning import memory
from isentrope.policy.derivative_guard import require_derivatives
from isentrope.training.models import load_trainable
from isentrope.verbs.part_memory import Holding
from isentrope.verbs.plan import plan
from isentrope.verbs.plan_training import untrained
from tests import cases

QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 151_936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "max_position_embeddings": 32_768,
}
"""The shapes of Qwen2.5-1.5B."""


@pytest.fixture
def qwen(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    return str(tmp_path)


def section(path, **more):
    return load_config({"model": {"path": str(path), **more}}, root=TrainConfig).model


def test_the_recipe_has_the_parameters_of_qwen_and_of_its_adapter(qwen):
    model = untrained(section(qwen, lora_rank=64, lora_alpha=128))
    assert {p.device.type for p in model.parameters()} == {"meta"}
    d, inner, heads, layers = 1536, 8960, (12 + 2 * 2) * 128, 28
    biases_and_norms = heads + 2 * d
    layer = d * heads + d * d + 3 * d * inner + biases_and_norms
    base = 151_936 * d + layers * layer + d
    sides = (d + d, d + 256, d + 256, d + d, d + inner, d + inner, inner + d)
    adapter = 64 * layers * sum(sides)
    terms = memory.held_in_training(model)
    assert terms["weights"] == 4 * (base + adapter)
    assert terms["gradients"] == 4 * adapter
    assert terms["moments of Adam"] == 8 * adapter


def test_shapes_are_those_of_the_model_that_is_trained(tmp_path):
    cases.model("qwen2").save_pretrained(tmp_path)
    for rank in (0, 2):
        expected, _ = load_trainable_of(tmp_path, rank)
        planned = untrained(section(tmp_path, lora_rank=rank))
        assert memory.held_in_training(planned) == memory.held_in_training(expected)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_reference_is_a_copy_of_what_is_trained(tmp_path, rank):
    trainer = trainer_with_beta(tmp_path, rank)
    policy = untrained(section(tmp_path, lora_rank=rank))
    without = memory.held_in_training(policy)
    terms = memory.held_in_training(policy, reference=True)
    models = filter(None, (trainer.model, trainer.ref_model))
    alive = sum(p.nbytes for model in models for p in model.parameters())
    assert terms.keys() - without.keys() == {"reference"}
    assert terms["weights"] + terms["reference"] == alive


def trainer_with_beta(folder, rank):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    cases.model("qwen2").save_pretrained(folder)
    model, tokenizer = load_trainable_of(folder, rank)
    args = GRPOConfig(
        output_dir=str(folder / "run"), beta=0.1, use_cpu=True, bf16=False, report_to="none"
    )
    rows = Dataset.from_list([{"prompt": "1+1="}])
    return GRPOTrainer(model, lambda **_: [0.0], args, rows, processing_class=tokenizer)


def load_trainable_of(folder, rank):
    from isentrope.sampling.tasks.addition import character_tokenizer

    character_tokenizer().save_pretrained(folder)
    return load_trainable(str(folder), lora_rank=rank, lora_alpha=32)


def test_a_pass_without_weights_takes_at_least_what_one_with_weights_takes(tmp_path):
    cases.model("qwen2").save_pretrained(tmp_path)
    real, _ = load_trainable_of(tmp_path, 2)
    real.train()
    alive = memory.Alive("cpu", [*real.parameters(), *real.buffers()])
    ids = torch.zeros(8, 64, dtype=torch.long)
    before = alive.now
    with alive:
        decoder = real.get_base_model().base_model
        decoder(input_ids=ids, use_cache=False)[0].sum().backward()
    measured = alive.peak - before - memory.held_in_training(real)["gradients"]
    planned = memory.activation_bytes(untrained(section(tmp_path, lora_rank=2)), 8, 64)
    assert measured <= planned < 2 * measured  # whose attention keeps all scores


def test_products_in_bfloat16_keep_copies_of_weights(tmp_path):
    cases.model("qwen2").save_pretrained(tmp_path)
    real, _ = load_trainable_of(tmp_path, 2)
    real.train()
    ids = torch.zeros(1, 1, dtype=torch.long)

    def measured(bf16):
        alive = memory.Alive("cpu", [*real.parameters(), *real.buffers()])
        before = alive.now
        with alive, torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            real.get_base_model().base_model(input_ids=ids, use_cache=False)[0].sum()
        return alive.peak - before

    copies = memory.autocast_copies(untrained(section(tmp_path, lora_rank=2)))
    assert copies == memory.held_in_training(real)["weights"] / 2
    assert 0 < measured(True) - measured(False) <= copies


def test_checkpointing_holds_less_of_deeper_models(tmp_path):
    cases.model("qwen2", num_hidden_layers=6).save_pretrained(tmp_path)
    whole = untrained(section(tmp_path, lora_rank=2)).train()
    light = untrained(section(tmp_path, lora_rank=2)).train()
    light.gradient_checkpointing_enable()
    light.enable_input_require_grads()
    assert memory.activation_bytes(light, 8, 64) < memory.activation_bytes(whole, 8, 64) / 2


def test_values_alone_hold_less_than_a_pass_that_goes_back(tmp_path):
    cases.model("qwen2", num_hidden_layers=6).save_pretrained(tmp_path)
    model = untrained(section(tmp_path, lora_rank=2))
    backward = memory.activation_bytes(model, 8, 64)
    assert memory.activation_bytes(model, 8, 64, backward=False) < backward / 2
    assert memory.activation_bytes(model, 8, 64) == backward


def test_tiles_of_logits_are_those_of_trl():
    assert memory.TILE == (TOKEN_CHUNK_SIZE, _CHUNKED_LOGPROB_CHUNK_SIZE)


@pytest.mark.parametrize(("vocabulary", "tokens"), [(1000, 512), (12_000, 256), (40_000, 128)])
def test_a_tile_of_trl_holds_what_is_planned(vocabulary, tokens):
    model = cases.model("qwen2", vocabulary, hidden_size=16)
    hidden = torch.randn(tokens, 16, requires_grad=True)
    targets = torch.zeros(tokens, dtype=torch.long)
    alive = memory.Alive("cpu", [])
    with alive:
        weight = model.lm_head.weight.detach()
        outputs = ChunkedLogProbFunction.apply(
            hidden, weight, None, targets, 1.0, _CHUNKED_LOGPROB_CHUNK_SIZE
        )
        outputs[0].sum().backward()
    planned = memory.training_logits(model, tokens, "cpu")
    assert alive.peak <= planned <= 1.2 * alive.peak


def test_a_training_is_planned_by_its_shapes(qwen, tmp_path):
    file = tmp_path / "train.yaml"
    (tmp_path / "config.json").write_text(json.dumps(QWEN | {"num_hidden_layers": 2}))
    small = "training: {micro_batch: 2, group_size: 2}\nsampling: {max_new_tokens: 20}\n"
    file.write_text(f"model: {{path: {qwen}}}\n{small}trainer: {{gradient_checkpointing: true}}\n")
    train, measure, influence = plan(load_any(file), str(file), memory="40GB")
    assert f"`isentrope train {file} --set training.steps=2 --out NEW`" in train.measured_by
    assert [part.name for part in train.parts] == ["drawing", "update"]
    assert train.parts[1].passes == (2, 1, 0, 0)  # the forward pass is run again
    assert not train.seconds
    assert train.fits
    assert measure.measured_by == influence.measured_by
    assert "there is no checkpoint yet" in measure.measured_by
    assert influence.held["stored gradient groups"] > measure.held["step"] / 40
    (short,) = plan(load_any(file), str(file), verbs=["train"], memory="1.6GB")
    assert not short.fits
    assert "held whatever is read at a time" in short.cure
    assert "gradient_checkpointing" in short.cure


def test_a_fine_tuning_is_planned_by_its_shapes(tmp_path):
    file = tmp_path / "sft.yaml"
    tuning = {"steps": 50, "batch_size": 8, "micro_batch": 4}
    sections = {"model": {"path": "toy", "lora_rank": 0}, "fine_tuning": tuning}
    file.write_text(json.dumps(sections | {"data": {"dataset_name": "addition"}}))
    (planned,) = plan(load_any(file), str(file), memory="64GB")
    (part,) = planned.parts
    assert (part.setting, part.value) == ("fine_tuning.micro_batch", 4)
    assert (part.responses, part.passes) == (8, (1, 1, 0, 0))
    assert "Passes are those of one step, of 50." in planned.assumptions
    assert list(tmp_path.iterdir()) == [file]


def test_what_is_not_planned_is_refused_by_name(qwen, tmp_path):
    file = tmp_path / "train.yaml"
    file.write_text(f"model: {{path: {qwen}}}\ntraining: {{steps: 9}}\n")
    with pytest.raises(ValueError, match="is for train, measure, influence, not for sft"):
        plan(load_any(file), str(file), verbs=["sft"])
    with pytest.raises(FileNotFoundError, match=r"plan with --set model\.path="):
        plan(load_any(file, ["model.path=runs/none/model"]), str(file))
    with pytest.raises(ValueError, match=r"model\.shard_base spreads"):
        plan(load_any(file, ["model.shard_base=true"]), str(file))


@pytest.mark.parametrize(("rank", "vocabulary"), [(4, 64), (0, 64), (4, 20_000)])
@pytest.mark.parametrize(("mode", "order"), [("forward", 1), ("forward over forward", 2)])
def test_comparing_derivatives_holds_what_is_planned_of_it_and_fits_or_makes_no_copy(
    rank, vocabulary, mode, order
):
    sizes = QWEN | {"vocab_size": vocabulary, "hidden_size": 256, "intermediate_size": 1024}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes)).eval()
    if rank:
        lora = LoraConfig(r=rank, target_modules="all-linear", init_lora_weights=False)
        model = get_peft_model(model, lora)
    policy = Policy(model, precision="float32", eos_token_id=0)
    holding = Holding(SamplingConfig(), policy.precision, policy.model, None)
    planned = holding.to_compare(2**40, order)
    alive = memory.Alive("cpu", [*policy.model.parameters(), *policy.model.buffers()])
    before = alive.now
    with alive:
        require_derivatives(policy, cases.ragged(2), mode)
    measured = alive.peak - before
    assert 0.9 * measured <= sum(planned.values()) <= 1.1 * measured
    room = 2 * (sum(planned.values()) - planned["logits"])
    assert "weights in float64" in memory.held_to_compare(policy.model, room + 1, order)
    assert "weights in float64" not in memory.held_to_compare(policy.model, room, order)
