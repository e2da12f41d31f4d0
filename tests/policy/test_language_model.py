import pytest
import torch

from isentrope import Policy, score
from isentrope.nouns.vectors import axpy, dot
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.scoring import score_along
from isentrope.policy.token_statistics import nondeterminism
from tests import cases


def test_theta_is_the_adapter_and_nothing_else():
    policy = cases.lora_policy("qwen2")
    assert len(policy.names) == 2 * 7 * 2  # A and B of seven layers in each of two blocks
    assert all("lora_" in name for name in policy.names)


@pytest.mark.parametrize(("make", "name"), [(cases.lora_policy, "qwen2"), (cases.policy, "llama")])
def test_scores_at_a_shifted_theta_leave_the_model_alone(make, name):
    policy, batch = make(name), cases.ragged()
    v = cases.direction(policy)
    before = {n: p.clone() for n, p in policy.model.named_parameters()}
    functional = score(policy, batch, policy.parameters_along(v, 0.1))
    assert all(torch.equal(before[n], p) for n, p in policy.model.named_parameters())
    with policy.shifted(v, 0.1):
        in_place = score(policy, batch)
    assert all(torch.equal(before[n], p) for n, p in policy.model.named_parameters())
    torch.testing.assert_close(functional.logprobs, in_place.logprobs, rtol=0, atol=1e-14)


def test_tied_embeddings_move_together():
    torch.manual_seed(0)
    policy = Policy(cases.model("qwen2", tie_word_embeddings=True), eos_token_id=0)
    assert "lm_head.weight" not in policy.names
    v, batch = cases.direction(policy), cases.ragged()
    ones = torch.ones(7, int(batch.lengths.max()), dtype=torch.float64)
    forward = score_along(policy, batch, v, 1)[1].logprobs.sum()
    assert dot(weighted_gradient(policy, batch, ones), v) == pytest.approx(float(forward))


def test_shifting_by_zero_changes_no_bit():
    policy = cases.policy("qwen2")
    moved = policy.parameters_along(cases.direction(policy), 0.0)
    assert all(torch.equal(moved[n], p) for n, p in policy.theta.items())


def test_another_trainable_set_is_refused():
    model = cases.model("qwen2")
    names = [n for n, _ in model.named_parameters()]
    Policy(model, trainable=names)
    with pytest.raises(ValueError, match="1 names"):
        Policy(model, trainable=names[1:])
    with pytest.raises(ValueError, match="θ is empty"):
        Policy(model.requires_grad_(False))


def test_active_dropout_is_refused_at_once_and_later():
    policy = cases.lora_policy("qwen2", lora_dropout=0.1)
    policy.model.train()
    with pytest.raises(ValueError, match=r"[Cc]all model\.eval"):
        score(policy, cases.ragged())
    with pytest.raises(ValueError, match="Dropout is active"):
        Policy(policy.model)


def test_training_mode_without_dropout_is_fine():
    policy = cases.policy("qwen2")
    policy.model.train()
    score(policy, cases.ragged())


def test_nan_weights_are_named():
    model = cases.model("qwen2")
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    with pytest.raises(ValueError, match=r"'model\.norm\.weight' holds NaN"):
        Policy(model)


def test_a_direction_that_is_not_finite_is_refused():
    policy = cases.policy("qwen2")
    v = cases.direction(policy)
    with pytest.raises(ValueError, match="not finite"):
        policy.require_direction(axpy(torch.inf, v, v))


def test_a_random_model_is_found_out():
    policy = cases.policy("qwen2")
    assert nondeterminism(*(score(policy, cases.ragged()) for _ in range(2))) is None
    norm = policy.model.model.norm
    forward = norm.forward
    norm.forward = lambda x: forward(x) * (1 + 1e-9 * torch.rand(()).double())
    assert "differ in logprobs" in (
        nondeterminism(*(score(policy, cases.ragged()) for _ in range(2))) or ""
    )


@pytest.mark.parametrize("reentrant", [True, False])
def test_active_checkpointing_is_refused_and_its_suspension_is_not(reentrant):
    policy = cases.lora_policy("qwen2")
    policy.model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    policy.model.enable_input_require_grads()
    batch, ones = cases.ragged(2), torch.ones(2, 9)
    policy.model.train()
    with pytest.raises(ValueError, match=r"checkpointing is active in '.*model"):
        weighted_gradient(policy, batch, ones)
    policy.model.eval()
    assert any(bool(x.any()) for x in weighted_gradient(policy, batch, ones).values())


def test_a_parameter_that_no_forward_pass_uses_is_named():
    model = cases.model("qwen2").requires_grad_(False)
    model.unused = torch.nn.Parameter(torch.zeros(2))
    policy = Policy(model, eos_token_id=0, pad_token_id=0)
    with pytest.raises(ValueError, match="'unused'"):
        weighted_gradient(policy, cases.ragged(2), torch.ones(2, 9))
