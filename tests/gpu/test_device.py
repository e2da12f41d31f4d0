"""Every quantity on a device equals the same quantity on the CPU in float64.

The device is $ISENTROPE_DEVICE, cuda where there is one, else the CPU. On the CPU these tests
compare float32 and bfloat16 with float64.
"""

import os
from functools import cache

import pytest
import torch

import isentrope as ise
from isentrope import Precision
from isentrope.nouns.vectors import Vector, axpy, dot, norm
from isentrope.update.step import compute_step
from tests import cases

pytestmark = pytest.mark.gpu

DEVICE = os.environ.get("ISENTROPE_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
RELATIVE = {"float64": 1e-9, "float32": 2e-3}
"""Largest relative error of a quantity, by the precision it was computed in."""
by_precision = pytest.mark.parametrize("precision", RELATIVE)
ETAS = [1e-3, 1e-2]


def on(device: str, precision: str) -> ise.Policy:
    """The LoRA policy of the tests, on a device."""
    policy = cases.lora_policy("qwen2", precision="float64")
    policy.model.to(device)
    return policy.convert(precision)


def update_batch() -> ise.Rollouts:
    """Random responses with advantages, two per prompt."""
    drawn = cases.ragged(8, seed=7)
    advantages = torch.randn(8, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    prompts, index = [torch.tensor([1, 2, 3, 4][: 1 + p]) for p in range(4)], torch.arange(8) % 4
    return ise.Rollouts(prompts, drawn.response_ids, index, advantages=advantages)


@cache
def quantities(device: str, precision: str) -> dict[str, torch.Tensor]:
    """Each quantity of the library as one tensor on the CPU."""
    policy, E, U = on(device, precision), cases.ragged(24, seed=1), update_batch()
    scores = ise.score(policy, E)
    # SGD: a fresh Adam divides by gradients that are nearly zero, whose float32 noise it shows.
    optimizer = torch.optim.SGD([p for p in policy.model.parameters() if p.requires_grad], 1e-2)
    step = compute_step(policy, U, optimizer, max_response_length=9, max_grad_norm=0.5)
    v = step.direction
    sweep = ise.entropy_change(policy, E, v, ETAS)
    gradient = ise.entropy_gradient(policy, E)
    table = ise.influence(policy, E, U, step, ise.InfluenceOptions(overlap="independent"))
    kernel = ise.fisher_kernel(policy, E, U, preconditioner=step.preconditioner)
    return {
        "logprobs": scores.logprobs,
        "entropies": scores.entropies,
        "v": flat(v),
        "ΔH": torch.tensor([p.change.value for p in sweep.points]),
        "δH₁": torch.tensor(sweep.first_order.value),
        "δH₂": torch.tensor(sweep.second_order.value),
        "g_H": flat(gradient),
        "<g_H, v>": torch.tensor(float(dot(gradient, v))),
        "influence": table.entropy.sequences,
        "influence of tokens": table.entropy.tokens,
        "kernel": kernel.matrix,
    }


def flat(vector: Vector) -> torch.Tensor:
    return torch.cat([x.double().cpu().flatten() for x in vector.values()])


def reference() -> dict[str, torch.Tensor]:
    return quantities("cpu", "float64")


@by_precision
def test_every_quantity_is_that_of_the_cpu_in_float64(precision):
    for name, value in quantities(DEVICE, precision).items():
        error = float((value.double().cpu() - reference()[name]).norm() / reference()[name].norm())
        assert error < RELATIVE[precision], (name, error)


def test_bfloat16_scores_are_those_of_float64_to_its_own_rounding():
    exact, short = (
        ise.score(on(d, p), cases.ragged()) for d, p in (("cpu", "float64"), (DEVICE, "bfloat16"))
    )
    assert float((exact.logprobs - short.logprobs).abs().max()) < 0.3


def test_a_seed_draws_the_same_responses_on_every_device():
    here, there = (
        ise.sample(on(device, "float64"), [[1, 2], [3]], 32, max_new_tokens=6, seed=5)
        for device in ("cpu", DEVICE)
    )
    assert all(
        torch.equal(a, b.cpu()) for a, b in zip(here.response_ids, there.response_ids, strict=True)
    )


def test_tf32_is_off_inside_a_policy_whatever_the_process_has_set():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 256, generator=generator, dtype=torch.float64) for _ in range(2))
    before = torch.backends.fp32_precision
    torch.backends.fp32_precision = "tf32"
    try:
        with Precision.named("float32").active():
            product = a.float().to(DEVICE) @ b.float().to(DEVICE)
    finally:
        torch.backends.fp32_precision = before
    assert float((product.cpu().double() - a @ b).norm() / (a @ b).norm()) < 2e-6  # TF32: 3e-4


def test_a_policy_on_two_devices_is_refused_by_name():
    model = cases.model("llama").to(DEVICE)
    model.lm_head.to("meta")
    with pytest.raises(ValueError, match=r"lm_head.*meta"):
        ise.Policy(model, eos_token_id=0, pad_token_id=0)


def test_a_direction_on_the_cpu_serves_a_policy_on_the_device():
    policy = on(DEVICE, "float64")
    v = cases.direction(policy)
    moved = policy.parameters_along({n: x.cpu() for n, x in v.items()}, 0.5)
    expected = axpy(0.5, {n: x.to(policy.device) for n, x in v.items()}, policy.theta)
    assert norm({n: moved[n] - expected[n] for n in moved}) == 0
