"""Every fault planted here was found in a real code base; each must be found and explained."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GenerationConfig

from isentrope import Policy, Rollouts, sample, score
from isentrope.checks import check_adapter, check_instrument, check_optimizer, check_sampler
from isentrope.policy.gradient import weighted_gradient
from tests import cases

VOCABULARY, LENGTH = 120, 8
PROMPTS = [[5, 6, 7, 8, 9, 10], [11, 12], [13]]


@cases.built_once
def policy(dropout: float = 0.0, **options) -> Policy:
    torch.manual_seed(0)
    adapter = LoraConfig(r=2, target_modules="all-linear", lora_dropout=dropout)
    model = get_peft_model(cases.model("qwen2", VOCABULARY), adapter).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(std=0.2)
    return Policy(model, **{"eos_token_id": 0, "pad_token_id": 0, **options})


def batch(of: Policy, n: int = 300, seed: int = 0) -> Rollouts:
    return sample(of, PROMPTS, n, max_new_tokens=LENGTH, seed=seed)


def generated(of: Policy, prompts, *, mask=None, n: int = 300, **settings) -> Rollouts:
    """What a script with transformers' generate would have stored."""
    width = max(len(p) for p in prompts)
    padded = torch.tensor([[0] * (width - len(p)) + p for p in prompts]).repeat(n, 1)
    torch.manual_seed(0)
    lm = of.model.get_base_model()
    config = GenerationConfig(
        do_sample=True, max_new_tokens=LENGTH, eos_token_id=0, pad_token_id=0, **settings
    )
    with torch.no_grad(), of.precision.active():
        out = lm.generate(
            padded,
            attention_mask=torch.ones_like(padded) if mask is None else mask.repeat(n, 1),
            generation_config=config,
            output_scores=True,
            return_dict_in_generate=True,
        )
    rows = out.sequences[:, width:]
    drawn_with = torch.stack(out.scores, 1).log_softmax(-1).gather(2, rows[..., None])[..., 0]
    responses, logprobs = [], []
    for row, values in zip(rows, drawn_with, strict=True):
        ends = (row == 0).nonzero()
        length = int(ends[0]) + 1 if len(ends) else len(row)
        responses.append(row[:length])
        logprobs.append(values[:length])
    index = torch.arange(len(responses))
    return Rollouts([prompts[i % len(prompts)] for i in index], responses, index, logprobs)


def failed(findings) -> dict[str, str]:
    return {f.name: f"{f.detail}. {f.advice}" for f in findings if f.passed is False}


def sampler_faults(of: Policy, rollouts: Rollouts) -> dict[str, str]:
    return failed(check_sampler(of, rollouts, cases.direction(of)))


def test_a_sound_instrument_and_sampler_pass_every_check():
    sound = policy()
    rollouts = batch(sound)
    assert failed(check_instrument(sound, rollouts, cases.direction(sound))) == {}
    assert sampler_faults(sound, rollouts) == {}
    width = max(len(p) for p in PROMPTS)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in PROMPTS])
    settings = {"top_k": 0, "top_p": 1.0, "temperature": 1.0}
    assert sampler_faults(sound, generated(sound, PROMPTS, mask=mask, **settings)) == {}


def test_a_sampler_with_top_k_50_is_found():
    faults = sampler_faults(policy(), generated(policy(), [[5, 6]], top_k=50, n=600))
    assert "A filter renormalised them, as top_k=50 does" in faults["sampler = scorer"]
    assert "hidden top_k" in faults["E[surprisal] = E[H]"]


def test_a_scorer_at_another_temperature_is_found():
    faults = sampler_faults(policy(temperature=0.7), batch(policy(), 400))
    assert "those of temperature 1, the scorer is at 0.7" in faults["sampler = scorer"]
    assert "higher temperature" in faults["E[surprisal] = E[H]"]


HIDDEN = {
    "top_k": ({"top_k": 60}, "no filter on the tail", "hidden top_k of about 64"),
    "top_p": ({"top_p": 0.97}, "no filter on the tail", "hidden top_p of about 0.97"),
    "min_p": ({"min_p": 0.1}, "no filter on the tail", "hidden min_p of about 0.1"),
    "EOS": ({"min_new_tokens": 8}, "EOS as often as the policy's", "end less often"),
    "repetition_penalty": (
        {"repetition_penalty": 1.8},
        "repetitions as often as the policy's",
        "repetition_penalty, which generate",
    ),
}


@pytest.mark.parametrize("fault", HIDDEN)
def test_a_hidden_fault_is_found_without_logprobs(fault):
    settings, name, advice = HIDDEN[fault]
    settings = {"top_k": 0, "top_p": 1.0, "temperature": 1.0} | settings
    rollouts = generated(policy(), [[5, 6]], n=1000, **settings).with_columns(sampler_logprobs=None)
    unknown, *found = check_sampler(policy(), rollouts, cases.direction(policy()))[1:]
    assert unknown.passed is None
    assert "after temperature and filters" in unknown.advice
    assert advice in failed(found)[name]


def test_raw_logprobs_are_told_from_those_that_were_drawn_with():
    of = policy()
    filtered = generated(of, [[5, 6]], n=600, top_k=30, top_p=1.0, temperature=1.0)
    scores = score(of, filtered)
    raw = [s[m] for s, m in zip(scores.logprobs, scores.mask, strict=True)]
    faults = sampler_faults(of, filtered.with_columns(sampler_logprobs=raw))
    assert "sampler = scorer" not in faults
    assert "raw ones" in faults["no filter on the tail"]
    sharper = policy(temperature=0.5)
    rollouts = batch(sharper, 600)
    scores = score(of, rollouts)
    raw = [s[m] for s, m in zip(scores.logprobs, scores.mask, strict=True)]
    faults = sampler_faults(sharper, rollouts.with_columns(sampler_logprobs=raw))
    assert "fit the scorer's 0.5" in faults["sampler = scorer"]


def test_a_masked_eos_is_found():
    rollouts = batch(policy())
    cut = [r[:-1] if len(r) > 1 and int(r[-1]) == 0 else r for r in rollouts.response_ids]
    faults = sampler_faults(policy(), Rollouts(rollouts.prompt_ids, cut, rollouts.prompt_index))
    assert "pad = EOS" in faults["EOS is part of the response"]


@pytest.mark.parametrize("mode", [True, False])
def test_dropout_is_found_whether_it_acts_now_or_acted_in_training(mode):
    dropping = policy(dropout=0.05)
    dropping.model.train(mode)
    faults = failed(check_instrument(dropping, cases.ragged()))
    assert ("model.eval()" if mode else "lora_dropout 0") in faults["no dropout"]


def test_tf32_is_found():
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        faults = failed(check_instrument(policy(), cases.ragged()))
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    assert "cuda.matmul.fp32_precision=tf32" in faults["TF32 off"]


def gradients(of: Policy, count: int):
    """Noisy policy gradients, one a batch."""
    for seed in range(count):
        rollouts = batch(of, 32, seed)
        advantage = torch.randn(32, 1, generator=torch.Generator().manual_seed(seed)).double()
        yield weighted_gradient(of, rollouts, advantage * score(of, rollouts).mask)


def optimizer_state(of: Policy, names: list[str], batches: list) -> dict:
    parameters = dict(of.model.named_parameters())
    optimizer = torch.optim.AdamW([(n, parameters[n]) for n in of.names], lr=0.0)
    for gradient in batches:
        for name, g in gradient.items():
            parameters[name].grad = g
        optimizer.step()
    state = optimizer.state_dict()
    state["param_groups"][0]["param_names"] = names
    return state


def test_an_optimizer_state_in_the_wrong_order_is_found():
    of = policy()
    *known, _, fresh = gradients(of, 14)
    right = check_optimizer(of, fresh, optimizer_state(of, list(of.names), known))
    assert right.passed, right
    layers = [n.replace("layers.0", "x").replace("layers.1", "layers.0") for n in of.names]
    swapped = [n.replace("layers.x", "layers.1").replace(".x.", ".layers.1.") for n in layers]
    wrong = check_optimizer(of, fresh, optimizer_state(of, swapped, known))
    assert wrong.passed is False
    assert "wrong order" in wrong.advice
    short = optimizer_state(of, list(of.names), known)
    short["param_groups"][0]["params"] = short["param_groups"][0]["params"][:-1]
    assert check_optimizer(of, fresh, short).passed is False


def test_an_order_that_moments_leave_open_is_undecided_and_says_what_decides_it():
    of = policy()
    known, fresh = gradients(of, 2)
    state = optimizer_state(of, list(of.names), [known])
    del state["param_groups"][0]["param_names"]
    for moments in state["state"].values():
        moments["exp_avg_sq"].fill_(1.0)  # of which every exchange fits as well
    finding = check_optimizer(of, fresh, state)
    assert finding.passed is None
    assert "parameter_names.json" in finding.advice


def test_an_adapter_that_is_not_loaded_is_found(tmp_path):
    trained = policy()
    trained.model.save_pretrained(tmp_path)
    assert check_adapter(trained, tmp_path).passed
    plain = Policy(cases.model("qwen2", VOCABULARY), eos_token_id=0)
    finding = check_adapter(plain, tmp_path)
    assert finding.passed is False
    assert "Policy.from_checkpoint" in finding.advice
    assert sampler_faults(plain, batch(trained))["sampler = scorer"]


def test_an_adapter_at_its_initial_value_is_found(tmp_path):
    fresh = policy()
    with torch.no_grad():
        for name, p in fresh.model.named_parameters():
            if "lora_B" in name:
                p.zero_()
    fresh.model.save_pretrained(tmp_path)
    assert "step 0" in check_adapter(fresh, tmp_path).advice


def test_a_model_that_is_not_deterministic_is_found():
    random = policy()
    norm = random.model.get_base_model().model.norm
    forward = norm.forward
    norm.forward = lambda x: forward(x) * (1 + 1e-9 * torch.rand(()).double())
    faults = failed(check_instrument(random, cases.ragged()))
    assert "draws random numbers" in faults["deterministic model"]


def test_left_padding_without_a_mask_is_found():
    rollouts = generated(policy(), PROMPTS, top_k=0, top_p=1.0, temperature=1.0)
    faults = sampler_faults(policy(), rollouts)
    assert "without an attention mask" in faults["sampler = scorer"]


def test_a_model_that_looks_at_its_neighbours_is_found():
    odd = policy()
    decoder = odd.model.get_base_model().model
    forward = decoder.forward

    def leaky(input_ids, **arguments):
        out = forward(input_ids=input_ids, **arguments)
        return (out[0] * (1 + 0.01 * input_ids.shape[1]),)

    decoder.forward = leaky
    faults = failed(check_instrument(odd, cases.ragged()))
    assert "padding" in faults["scores independent of the batch"]


def test_one_prompt_draw_is_neither_sound_nor_broken():
    of = policy()
    alone = batch(of, n=1)
    found = {f.name: f.passed for f in check_sampler(of, alone, cases.direction(of))}
    assert found["E[Σ ∂s] = 0"] is None
    assert False not in found.values()
