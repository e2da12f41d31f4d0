"""Where memory is short, micro-batches shrink and numbers stay."""

import logging

import pytest
import torch

import isentrope as ise
from isentrope import GradientOptions, Policy, score
from isentrope.attribution.fisher.second_order import second_order_kernel
from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.attribution.influence.projection import on_sums
from isentrope.checks.draws import count_draws
from isentrope.control.measured import kept_mass
from isentrope.parallel.ranks import Ranks
from isentrope.policy.chi_square import score_moved
from isentrope.policy.gradient import weighted_gradient
from isentrope.system.memory import is_lack_of_memory
from tests import cases

CPU = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)"
)
ERRORS = [torch.OutOfMemoryError("CUDA out of memory."), MemoryError(), CPU]


@pytest.fixture
def short(monkeypatch):
    """A policy whose model fails on more than so many tokens, and what it was given."""

    def make(tokens, error):
        policy, given = cases.lora_policy("qwen2"), []
        decoder = policy.causal_lm.get_decoder()
        plain = decoder.forward

        def forward(*args, **options):
            given.append(options["input_ids"].numel())
            if given[-1] > tokens:
                raise error
            return plain(*args, **options)

        monkeypatch.setattr(decoder, "forward", forward)
        return policy, given

    return make


def test_every_pass_goes_on_in_smaller_micro_batches(short, caplog):
    E = cases.ragged(6, seed=2)
    weights = E.mask.double()
    plain = cases.lora_policy("qwen2")
    v = {n: torch.ones_like(p, dtype=torch.float64) for n, p in plain.theta.items()}
    passes = (
        lambda p: score(p, E).logprobs,
        lambda p: score_moved(p, E, v, [1e-3])[0][0].entropies,
        lambda p: next(iter(weighted_gradient(p, E, weights).values())),
        lambda p: ise.fisher_kernel(p, E).matrix,
        lambda p: ise.fisher_kernel(p, E, E).matrix,
        lambda p: on_sums(p, score_sums(E), [v], GradientOptions()),
        lambda p: second_order_kernel(p, E, E),
        lambda p: torch.tensor([f.p_value for f in count_draws(p, E).filters]),
        lambda p: kept_mass(p, E, 0.1),
    )
    for k, run in enumerate(passes):
        caplog.clear()
        policy, given = short(30, ERRORS[k % len(ERRORS)])
        with caplog.at_level(logging.WARNING):
            found = run(policy)
        torch.testing.assert_close(found, run(plain), rtol=1e-10, atol=1e-12)
        assert policy.max_tokens <= 30 < max(given)
        assert "Memory is short: " in caplog.text


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_sampling_goes_on_with_fewer_responses_at_a_time(short, error, caplog):
    plain = cases.lora_policy("qwen2")
    policy, given = short(6, error)
    with caplog.at_level(logging.WARNING):
        found = ise.sample(policy, [[1, 2], [3]], 8, max_new_tokens=6, seed=5)
    expected = ise.sample(plain, [[1, 2], [3]], 8, max_new_tokens=6, seed=5)
    assert [x.tolist() for x in found.response_ids] == [x.tolist() for x in expected.response_ids]
    assert given[-1] <= 6 < max(given)
    assert "at a time" in caplog.text


def test_a_single_sequence_that_does_not_fit_is_an_error(short):
    policy, _ = short(3, ERRORS[0])
    with pytest.raises(torch.OutOfMemoryError):
        score(policy, cases.ragged(4, seed=2))


def test_in_several_processes_there_is_no_second_try(short, monkeypatch):
    policy, given = short(30, ERRORS[0])
    monkeypatch.setattr(policy, "ranks", Ranks(rank=0, size=2))
    with pytest.raises(torch.OutOfMemoryError):
        score(policy, cases.ragged(40, seed=2))
    assert len(given) == 1


def test_other_errors_are_not_tried_again(short):
    policy, given = short(30, RuntimeError("a shape is wrong"))
    with pytest.raises(ValueError, match="a shape is wrong"):
        score(policy, cases.ragged(8, seed=2))
    assert len(given) == 1
    assert not is_lack_of_memory(RuntimeError("a shape is wrong"))
    assert isinstance(policy, Policy)
