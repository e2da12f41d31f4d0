"""Sizes of the kernel by width, against one backward pass per response."""

import math

import pytest
import torch

from isentrope.sampling.generate import respond
from isentrope.sampling.prompts import as_prompts
from studies import theory_width
from studies.theory_policies import transformer

WIDTH = 16
SCALE = 0.25


def test_sizes_are_those_of_one_backward_pass_per_response():
    policy = transformer(theory_width.VOCABULARY, WIDTH, seed=0, scale=SCALE)
    prompts = as_prompts(policy, [theory_width.PROMPT])
    generator = torch.Generator().manual_seed(0)
    drawn = respond(
        policy, prompts, theory_width.RESPONSES, generator, max_new_tokens=theory_width.LENGTH
    )
    start = len(theory_width.PROMPT)
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    rows = []
    for response in drawn.response_ids:
        ids = torch.cat([torch.tensor(theory_width.PROMPT), response])
        log_p = policy.model(ids[None]).logits[0].log_softmax(-1)
        total = log_p[start - 1 : -1].gather(1, response[:, None]).sum()
        gradients = torch.autograd.grad(total, parameters)
        rows.append(torch.cat([g.flatten() for g in gradients]))
    w = torch.stack(rows)
    rms = w.square().mean(0).sqrt()
    rescaled = torch.where(rms > 0, w.square() / rms, torch.zeros_like(w))
    sizes = theory_width.sizes(WIDTH, SCALE, 0)
    assert sizes["P = 1"] == pytest.approx(float(w.square().sum(1).mean()), rel=1e-6)
    assert sizes["P = 1/rms"] == pytest.approx(float(rescaled.sum(1).mean()), rel=1e-6)


def test_the_exponent_of_a_power_law_is_its_power():
    values = [3.0 * math.sqrt(width) for width in theory_width.WIDTHS]
    assert theory_width.exponent(theory_width.WIDTHS, values) == pytest.approx(0.5)
