"""The padding token as an input, its row moved by a tied head: E feels it, training does not."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

import isentrope as ise
from isentrope import GradientOptions, fisher_kernel, score
from isentrope.attribution.gradients.closure import tolerance
from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.models.architecture import DerivativeOfTraining
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.scoring import score_along
from tests import cases

PAD = 1
PROMPTS = [[3, PAD, 4], [2, PAD]]


@cases.built_once
def tied(**options):
    lm = cases.model("qwen2", pad_token_id=PAD, tie_word_embeddings=True)
    with torch.no_grad():
        lm.get_input_embeddings().weight[PAD].normal_(std=0.3)
    return ise.Policy(lm, eos_token_id=0, pad_token_id=0, **options)


@cases.built_once
def tied_by_adapter():
    lm = tied().model
    adapter = LoraConfig(r=2, target_modules=["embed_tokens", "q_proj"], init_lora_weights=False)
    return ise.Policy(get_peft_model(lm, adapter).eval(), eos_token_id=0, pad_token_id=0)


def step_of(policy):
    U = ise.sample(policy, [[2, PAD, 3], [4, PAD]], 4, 2, max_new_tokens=3, seed=1)
    U = U.with_columns(advantages=torch.arange(8.0).double() - 3.5)
    plain = torch.optim.SGD([p for p in policy.model.parameters() if p.requires_grad], lr=1.0)
    return U, ise.optimizer_step(policy, U, plain, max_grad_norm=None)


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("make", [tied, tied_by_adapter])
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_influence_is_the_derivative_that_measure_has_and_its_budget_closes(make, tokens):
    policy = make()
    E = ise.sample(policy, PROMPTS, n=24, max_new_tokens=3, seed=0)
    U, step = step_of(policy)
    backend = "hooks" if make is tied else "loop"
    found = ise.influence(
        policy,
        E,
        U,
        step,
        tokens=tokens,
        options=ise.InfluenceOptions(
            groups=2, overlap="independent", gradients=GradientOptions(backend)
        ),
    )
    change = ise.entropy_change(policy, E, step.direction, [], order=1)
    assert found.total.value == pytest.approx(change.first_order.value, rel=1e-9)
    assert abs(found.entropy.closure) < 1e-9 * abs(found.total.value)


def test_the_kernel_has_the_derivative_in_its_rows_and_trainings_gradient_in_its_columns():
    policy = tied()
    E, U = cases.ragged(4).with_columns(prompt_ids=[torch.tensor([2, PAD])] * 4), cases.ragged(3)
    kernel = fisher_kernel(policy, E, U).matrix
    for j in range(len(U)):
        one = U.select([j])
        v = weighted_gradient(policy, one, score_sums(one).logprob_weights)
        slope = score_along(policy, E, v, 1)[1].logprobs.sum(1)
        torch.testing.assert_close(kernel[:, j], slope)


def test_forward_mode_as_training_has_it_is_autograds_gradient():
    policy, batch = tied(), cases.ragged(5)
    v, a = cases.direction(policy), score(policy, batch).mask.double()
    gradient = weighted_gradient(policy, batch, a)
    expected = sum(float((gradient[n] * v[n]).sum()) for n in v)
    plain = float(score_along(policy, batch, v, 1)[1].logprobs.sum())
    with DerivativeOfTraining():
        trained = float(score_along(policy, batch, v, 1)[1].logprobs.sum())
    assert trained == pytest.approx(expected, rel=1e-9)
    assert abs(plain - expected) > 1e-3 * abs(expected)


class HalfGradient(torch.autograd.Function):
    """The identity, with half its gradient in reverse mode."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g / 2

    @staticmethod
    def jvp(ctx, t):
        return t.clone()


def broken():
    policy = cases.policy("qwen2")
    mlp = policy.model.model.layers[0].mlp
    forward = mlp.forward
    mlp.forward = lambda x: HalfGradient.apply(forward(x))
    return policy


@pytest.mark.parametrize("verb", ["influence", "kernel", "noise"])
def test_a_gradient_that_is_no_derivative_is_an_error_in_every_verb(verb):
    policy = broken()
    E = ise.sample(policy, [[1], [2, 3]], n=8, max_new_tokens=3, seed=0)
    U, step = step_of(policy)
    run = {
        "influence": lambda: ise.influence(
            policy, E, U, step, tokens=False, options=ise.InfluenceOptions(groups=2)
        ),
        "kernel": lambda: fisher_kernel(policy, E),
        "noise": lambda: ise.noise_scale(policy, U, token_weights=step.token_weights),
    }
    with pytest.raises(ValueError, match=r"reverse mode .*forward mode"):
        run[verb]()


def test_the_tolerance_is_that_of_the_precision():
    found = [tolerance(tied(precision=p)) for p in ("float64", "float32", "bfloat16")]
    assert found == pytest.approx([1e-6, 4e-4, 0.1])
