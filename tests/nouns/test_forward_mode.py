"""Nested forward mode, operation by operation, against differences of plain float64 values.

Second derivatives along a curved path x(e) = a + e b + e² c, so that every term of the chain rule
acts. These are the operations that decoders are made of; the ones that torch refuses to
differentiate (fused attention, `glu`, `hardsigmoid`) raise an error by themselves.
"""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from isentrope.nouns.forward_mode import FrozenOperands, derivatives_at_zero

G = torch.Generator().manual_seed(0)


def path(*shape, positive=False):
    """x(e) = a + e b + e² c with random a, b, c."""
    a, b, c = (torch.randn(shape, generator=G, dtype=torch.float64) for _ in range(3))
    a = a.abs() + 1 if positive else a
    return lambda e: a + e * b + e * e * c


x, y, up = path(3, 6, 8), path(3, 6, 8), path(3, 6, 8, positive=True)
w, b, m, q, k, v = path(8), path(8), path(8, 5), *(path(2, 3, 6, 8) for _ in range(3))
conv, depthwise, table, image = path(5, 6, 3), path(6, 1, 3), path(6, 8), path(2, 6, 4, 4)
six, six_too = path(6), path(6)
INDEX = torch.randint(0, 6, (3, 6), generator=G)
LAYER_NORM = torch.nn.LayerNorm(8, dtype=torch.float64).requires_grad_(False)
ROWS = torch.tensor([0, 2, 2])
BIAS = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
FACTOR = torch.linspace(-1, 2, 3 * 6 * 8, dtype=torch.float64).reshape(3, 6, 8)
FROZEN = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def attention(e):
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q(e), k(e), v(e), is_causal=True)


def grouped_attention(e):
    with sdpa_kernel(SDPBackend.MATH):
        keys, values = k(e)[:, :1], v(e)[:, :1]
        return F.scaled_dot_product_attention(q(e), keys, values, enable_gqa=True)


def routed(e):
    """The arithmetic of a mixture of experts: top-k of a softmax, gathered and added back."""
    weights, chosen = (x(e)[0] @ m(e)).softmax(-1).topk(2, -1)
    weights = weights / weights.sum(-1, keepdim=True)
    out = torch.zeros_like(x(e)[0])
    for expert in range(5):
        token, slot = torch.where(chosen == expert)
        out = out.index_add(0, token, F.silu(y(e)[0, token] * w(e)) * weights[token, slot, None])
    return out


def written_into(e):
    out = torch.zeros_like(x(e))
    out[:, 1:4] = x(e)[:, 1:4] * y(e)[:, 1:4]
    out[:, 0] += up(e)[:, 0].log()
    return out.index_put_((ROWS,), x(e)[ROWS].square(), accumulate=True)


def rotated(e):
    pairs = torch.view_as_complex(x(e).reshape(3, 6, 4, 2))
    turns = torch.polar(up(e)[..., :4], y(e)[..., :4])
    halves = torch.cat((-x(e)[..., 4:], x(e)[..., :4]), -1) * w(e).cos()
    return torch.cat((torch.view_as_real(pairs * turns).flatten(2), halves), -1)


OPERATIONS = {
    "layer_norm": lambda e: F.layer_norm(x(e), (8,), w(e), b(e)),
    "layer_norm of two dimensions": lambda e: F.layer_norm(x(e), (6, 8)),
    "layer_norm by keyword": lambda e: F.layer_norm(
        input=x(e), normalized_shape=[8], weight=w(e), bias=None, eps=0.1
    ),
    "torch.layer_norm": lambda e: torch.layer_norm(x(e), (8,), w(e), b(e)),
    "nn.LayerNorm": lambda e: LAYER_NORM(x(e)),
    "group_norm": lambda e: F.group_norm(x(e), 2, six(e), six_too(e)),
    "rms_norm": lambda e: F.rms_norm(x(e), (8,), w(e)),
    "normalize": lambda e: F.normalize(x(e), dim=-1),
    "var and std": lambda e: x(e).var(-1) + x(e).std(-1, unbiased=False),
    "local_response_norm": lambda e: F.local_response_norm(image(e), 3),
    "gelu": lambda e: F.gelu(x(e)),
    "gelu tanh": lambda e: F.gelu(x(e), approximate="tanh"),
    "silu": lambda e: F.silu(x(e)),
    "relu²": lambda e: F.relu(x(e)).square(),
    "mish": lambda e: F.mish(x(e)),
    "elu and leaky_relu": lambda e: F.elu(x(e)) * F.leaky_relu(y(e)),
    "hardswish": lambda e: F.hardswish(x(e)),
    "softplus": lambda e: F.softplus(x(e)),
    "logsigmoid": lambda e: F.logsigmoid(x(e)),
    "sigmoid and tanh": lambda e: x(e).sigmoid() * y(e).tanh(),
    "softmax": lambda e: x(e).softmax(-1),
    "log_softmax": lambda e: x(e).log_softmax(-1),
    "logsumexp": lambda e: x(e).logsumexp(-1),
    "attention": attention,
    "grouped attention": grouped_attention,
    "linear": lambda e: F.linear(x(e), m(e).T),
    "bmm": lambda e: torch.bmm(x(e), y(e).mT),
    "baddbmm": lambda e: torch.baddbmm(x(e) @ y(e).mT, x(e), x(e).mT, beta=0.5, alpha=2),
    "addmm": lambda e: torch.addmm(x(e)[0, :, :5], y(e)[0], m(e)),
    "einsum": lambda e: torch.einsum("abc,cd,abd->ad", x(e), m(e), y(e)[..., :5]),
    "conv1d": lambda e: F.conv1d(x(e), conv(e)),
    "depthwise conv1d": lambda e: F.conv1d(x(e), depthwise(e), six(e), groups=6, padding=2),
    "conv2d": lambda e: F.conv2d(image(e), conv(e)[..., None]),
    "embedding": lambda e: F.embedding(INDEX, table(e)),
    "embedding with a padding row": lambda e: F.embedding(INDEX, table(e), padding_idx=0),
    "cumsum": lambda e: x(e).square().cumsum(1),
    "cumprod": lambda e: x(e).cumprod(1),
    "logcumsumexp": lambda e: x(e).logcumsumexp(1),
    "scan of a state-space model": lambda e: (x(e).cumsum(1) @ y(e).mT).exp().tril() @ x(e),
    "mixture of experts": routed,
    "sort and gather": lambda e: x(e).sort(-1)[0] * y(e).gather(-1, INDEX[..., None]),
    "scatter": lambda e: x(e).scatter(-1, INDEX[..., None], y(e)[..., :1]).square(),
    "scatter_add": lambda e: x(e).scatter_add(-1, INDEX[..., None], y(e)[..., :1]).square(),
    "index_add": lambda e: x(e).index_add(1, ROWS, y(e)[:, :3]).square(),
    "written into": written_into,
    "masked_fill": lambda e: x(e).masked_fill(INDEX[..., None] > 2, -1.0).exp(),
    "where": lambda e: torch.where(INDEX[..., None] > 2, x(e).square(), y(e)),
    "maximum and clamp": lambda e: torch.maximum(x(e), y(e)) * y(e).clamp(-1, 1),
    "powers": lambda e: up(e) ** x(e) + up(e).rsqrt() + up(e).reciprocal() + x(e) ** 3,
    "logarithms": lambda e: up(e).log() * up(e).log1p() + torch.xlogy(up(e), up(e)),
    "exponentials": lambda e: x(e).exp() + y(e).expm1() + x(e).exp2() + y(e).erf(),
    "division": lambda e: x(e) / up(e) + torch.addcdiv(x(e), y(e), up(e)) + x(e).lerp(y(e), w(e)),
    "norms": lambda e: x(e).norm(dim=-1) * torch.linalg.vector_norm(y(e), dim=-1),
    "products": lambda e: x(e).prod(-1) + torch.cat(x(e).chunk(2, -1)).prod(0).sum(),
    "rotary angles": rotated,
    "triangular solve": lambda e: torch.linalg.solve_triangular(
        (x(e) @ y(e).mT).tril() + 9 * torch.eye(6), x(e), upper=False
    ),
    "dimensions": lambda e: F.pad(x(e).roll(1, -1).flip(1).repeat_interleave(2, 1), (1, 0)) ** 2,
}


def second_difference(f, step=2e-3):
    """f''(0) by second differences at three steps, extrapolated: the error is of order step⁶."""
    scale = [torch.tensor(step * 2**-j, dtype=torch.float64) for j in range(3)]
    at_zero = f(torch.zeros((), dtype=torch.float64))
    coarse, middle, fine = ((f(h) - 2 * at_zero + f(-h)) / h**2 for h in scale)
    return (64 * fine - 20 * middle + coarse) / 45


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_second_derivative_is_the_limit_of_differences(name):
    f = OPERATIONS[name]
    truth = second_difference(f)
    found = derivatives_at_zero(f, 2)[2]
    assert float((found - truth).abs().max()) < 1e-6 * float(truth.abs().max())


def frozen(e):
    """A product with a frozen matrix, of an input whose second derivative is not 0."""
    return F.linear(x(e).square(), FROZEN, BIAS)


def mixed(e):
    """One with a matrix that moves."""
    return F.linear(x(e).square(), torch.cat([w(e)[None], FROZEN]), FROZEN.new_ones(4))


def slope_by_differences(f):
    h = torch.tensor(1e-6, dtype=torch.float64)
    return (f(h) - f(-h)) / (2 * h)


@pytest.mark.parametrize("f", [frozen, mixed])
def test_products_with_a_frozen_matrix_have_the_derivatives_of_products(f):
    for order in (1, 2):
        found = derivatives_at_zero(f, order)[order]
        truth = second_difference(f) if order == 2 else slope_by_differences(f)
        assert float((found - truth).abs().max()) < 1e-6 * float(truth.abs().max())


def changed_in_place(e):
    """A sum whose value and tangent change after it: its term keeps its own."""
    moving = x(e).square()
    total = moving + 1.0
    total.mul_(y(e))
    return total * moving


ONE_MOVES = {
    "a factor": lambda e: 2 * x(e).square() * FACTOR + FACTOR * x(e),
    "a factor with more dimensions": lambda e: x(e)[0].square() * FACTOR,
    "a divided one": lambda e: x(e).square() / FACTOR.exp() + FACTOR / up(e),
    "a term": lambda e: (x(e) + FACTOR).square() + (FACTOR + x(e) + 1).square(),
    "a term with more dimensions": lambda e: (x(e)[0].square() + FACTOR).exp(),
    "a difference": lambda e: (
        (x(e) - FACTOR).square() + (FACTOR - x(e)).square() + (1 - x(e)).exp()
    ),
    "a sum that is changed in place": changed_in_place,
}


@pytest.mark.parametrize("name", ONE_MOVES)
def test_operations_with_one_operand_that_moves_have_their_derivatives(name):
    f = ONE_MOVES[name]
    for order in (1, 2):
        found = derivatives_at_zero(f, order)[order]
        truth = second_difference(f) if order == 2 else slope_by_differences(f)
        assert float((found - truth).abs().max()) < 1e-6 * float(truth.abs().max())


@pytest.mark.parametrize("order", [1, 2])
def test_a_term_of_a_lower_precision_has_a_tangent_of_the_sums(order):
    found = derivatives_at_zero(lambda e: x(e).float().square() + FACTOR, order)[order]
    truth = derivatives_at_zero(lambda e: x(e).square() + FACTOR, order)[order]
    assert found.dtype == torch.float64
    assert torch.allclose(found, truth, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("order", "products"), [(1, 2), (2, 4)])
def test_no_zeros_are_multiplied_by_a_frozen_matrix(order, products):
    class Count(TorchDispatchMode):
        found = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.found += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
            return func(*args, **(kwargs or {}))

    with Count() as count:
        derivatives_at_zero(frozen, order)
    assert count.found == products


def test_directions_that_are_taken_together_share_the_frozen_product():
    rows = torch.randn(
        3, 4, FROZEN.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(6)
    )

    def slope(v):
        return torch.func.jvp(lambda y: F.linear(y.square(), FROZEN), (rows[0],), (v,))[1]

    with FrozenOperands():
        found = torch.func.vmap(slope)(rows)
    assert torch.allclose(found, (2 * rows[0] * rows) @ FROZEN.T, rtol=1e-12)
