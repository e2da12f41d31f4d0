"""Operations per micro-batch, beside those of plain passes: what a device waits for."""

from collections import Counter
from functools import cache

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen2Config, Qwen2ForCausalLM

import isentrope as ise
from isentrope.models.sharding import moved_along
from isentrope.policy import theta
from isentrope.policy.chi_square import score_moved
from isentrope.policy.gradient import score_jvp, weighted_gradient
from isentrope.policy.scoring import score_along

VOCABULARY = 64
PROMPT = 3
RESPONSE = 5
RATES = (1e-3, 2e-3, 4e-3, 8e-3)

NO_KERNEL = {
    *("view", "t", "slice", "detach", "_unsafe_view", "expand", "transpose", "unsqueeze", "alias"),
    *("split", "select", "permute", "as_strided", "unbind", "squeeze", "reshape", "lift_fresh"),
    *("split_with_sizes", "empty", "empty_like", "new_empty", "_efficientzerotensor"),
    *("is_same_size", "_has_same_storage_numel", "_reshape_alias", "empty_strided"),
}
"""Operations that start nothing on a device."""


class Operations(TorchDispatchMode):
    """Counts operations: those that start a kernel, or all but others."""

    def __init__(self, uncounted=NO_KERNEL):
        super().__init__()
        self.names = Counter()
        self.uncounted = uncounted

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.partition("::")[2]
        if name not in self.uncounted:
            self.names[name] += 1
        return func(*args, **(kwargs or {}))


@cache
def of_layers(layers):
    """A narrow policy with LoRA everywhere, four sequences, and a direction."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
    )
    lora = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    model = get_peft_model(Qwen2ForCausalLM(config), lora).eval()
    policy = ise.Policy(model, precision="float32", eos_token_id=0)
    prompts = torch.randint(1, VOCABULARY, (4, PROMPT))
    responses = torch.randint(1, VOCABULARY, (4, RESPONSE))
    batch = ise.Rollouts([*prompts], [*responses], torch.arange(4))
    direction = {n: 1e-3 * torch.randn(p.shape).double() for n, p in policy.theta.items()}
    return policy, batch, direction


@pytest.fixture
def subject():
    return of_layers(4)


def operations(compute):
    """How many a call takes."""
    with Operations() as counter:
        compute()
    return counter.names.total()


def per_micro_batch(policy, compute):
    """What two micro-batches take more than one, after what is done once."""
    compute()
    counts = []
    for sequences in (4, 2):
        policy.max_tokens = sequences * (PROMPT + RESPONSE)
        counts.append(operations(compute))
    return counts[1] - counts[0]


def forward(policy, batch):
    """A plain forward pass."""
    ids = torch.stack(
        [torch.cat(pair) for pair in zip(batch.prompt_ids, batch.response_ids, strict=True)]
    )
    return policy.model(input_ids=ids[:2], use_cache=False).logits


def forward_and_backward(policy, batch):
    """A plain pass of training."""
    loss = forward(policy, batch).sum()
    torch.autograd.grad(loss, [p for p in policy.model.parameters() if p.requires_grad])


def test_scores_and_sweeps_take_few_operations_more_than_forward_passes():
    policy, batch, direction = of_layers(8)  # what is done once per micro-batch is a small part
    with torch.no_grad():
        plain = operations(lambda: forward(policy, batch))
    scores = per_micro_batch(policy, lambda: ise.score(policy, batch))
    assert scores <= 1.2 * plain
    sweep = per_micro_batch(policy, lambda: score_moved(policy, batch, direction, RATES))
    assert sweep <= 1.2 * plain * (1 + len(RATES))
    change = per_micro_batch(
        policy, lambda: ise.entropy_change(policy, batch, direction, RATES, order=0)
    )
    assert change <= 1.5 * plain * (1 + len(RATES))


@pytest.mark.parametrize(("order", "most"), [(1, 2.2), (2, 7.7)])
def test_derivatives_take_few_operations_more_than_a_pass_of_training(subject, order, most):
    policy, batch, direction = subject
    plain = operations(lambda: forward_and_backward(policy, batch))
    passes = per_micro_batch(
        policy, lambda: score_along(policy, batch, direction, order, variances=True)
    )
    assert passes <= most * plain


def test_no_zeros_stand_for_the_tangents_of_frozen_operands_in_layers():
    zeros = []
    for layers in (4, 5):
        policy, batch, direction = of_layers(layers)
        score_along(policy, batch, direction, 1, variances=True)
        with Operations(frozenset()) as counter:
            score_along(policy, batch, direction, 1, variances=True)
        zeros.append(counter.names["_efficientzerotensor"])
    assert zeros[1] <= zeros[0] + 1, "each takes as long as many operations; attention has one"


def test_a_change_without_learning_rates_reads_each_response_once(subject):
    policy, batch, direction = subject
    slopes = per_micro_batch(
        policy, lambda: score_along(policy, batch, direction, 1, variances=True)
    )
    change = per_micro_batch(
        policy, lambda: ise.entropy_change(policy, batch, direction, [], order=1)
    )
    assert change == slopes


@pytest.mark.parametrize(
    ("compute", "most"),
    [
        (lambda policy, E, v: weighted_gradient(policy, E, E.mask.double(), E.mask.double()), 1.2),
        (lambda policy, E, v: ise.fisher_kernel(policy, E), 1.2),
        (lambda policy, E, v: score_jvp(policy, E, [v] * 4), 2.2),
    ],
    ids=["a gradient, of g_H or a step", "kernel", "tokens along several directions"],
)
def test_gradients_and_influence_take_few_operations_more_than_training(subject, compute, most):
    policy, batch, direction = subject
    plain = operations(lambda: forward_and_backward(policy, batch))
    passes = per_micro_batch(policy, lambda: compute(policy, batch, direction))
    assert passes <= most * plain


def test_influence_of_tokens_takes_few_operations_more_than_training_on_both_batches(subject):
    policy, E, _ = subject
    plain = operations(lambda: forward_and_backward(policy, E))
    U = E.select([1, 0, 3, 2]).with_columns(advantages=torch.tensor([1.0, -1.0, 1.0, -1.0]))
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters)
    step = ise.optimizer_step(policy, U, optimizer, max_response_length=RESPONSE)
    options = ise.InfluenceOptions(overlap="independent", groups=1)
    passes = per_micro_batch(policy, lambda: ise.influence(policy, E, U, step, options))
    assert passes <= 3 * 2 * plain


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_parameters_that_move_together_are_those_that_move_alone(monkeypatch, dtype):
    monkeypatch.setattr(theta, "NUMBERS_MOVED", 8)
    model = torch.nn.Sequential(*(torch.nn.Linear(2, k).to(dtype) for k in (1, 3, 5)))
    points = theta.Theta()
    points.model = model
    direction = {n: torch.randn(p.shape, dtype=torch.float64) for n, p in points.theta.items()}
    moved = points.parameters_along(direction, 1.7e-3)
    for name, parameter in points.theta.items():
        assert torch.equal(moved[name], moved_along(parameter, direction[name], 1.7e-3))
