import pytest
import torch

from isentrope.estimators.rounding import rounding_floor
from isentrope.estimators.sample import draw_sample
from isentrope.policy.language_model import Policy
from isentrope.policy.precision import Precision, RoundingOperations, matmul_switches
from isentrope.policy.scoring import score
from tests import cases


def test_tf32_is_really_off_inside_and_restored_outside():
    before = matmul_switches()
    torch.set_float32_matmul_precision("high")
    try:
        assert torch.backends.cuda.matmul.allow_tf32  # "high" turns it back on
        with Precision(runtime_dtype="float32").active():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cuda.matmul.allow_tf32
            assert not torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before["float32_matmul_precision"])
        torch.backends.cuda.matmul.allow_tf32 = before["cuda.matmul.allow_tf32"]


def test_high_matmul_precision_contradicts_tf32_off():
    with pytest.raises(ValueError, match="turns TF32 back on"):
        Precision(matmul_precision="high")
    with pytest.raises(ValueError, match="float16"):
        Precision(runtime_dtype="float16")


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["qwen2", "llama"])
def test_float64_rounds_nowhere_where_double_does(name, attention):
    model = cases.model(name, attn_implementation=attention).double()
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad(), RoundingOperations() as plain:
        model(input_ids=ids)
    with torch.no_grad(), Precision().active(), RoundingOperations() as ours:
        model(input_ids=ids)
    assert plain.found
    assert not ours.found


def test_a_model_that_rounds_inside_float64_is_refused():
    class Rounding(torch.nn.Linear):
        def forward(self, x):
            return super().forward(torch.empty_like(x).copy_(x.type("torch.FloatTensor")))

    model = cases.model("qwen2")
    layer = model.model.layers[0].mlp
    layer.up_proj.__class__ = Rounding
    with pytest.raises(ValueError, match="rounds inside float64"):
        Policy(model)


@pytest.mark.parametrize(("precision", "limit"), [("float64", 1e-10), ("float32", 1e-4)])
def test_rounding_floor_is_below_its_bound_and_above_zero(precision, limit):
    exact = cases.exact("llama")
    batch, policy = exact.sample(64, 0), cases.policy("llama", precision=precision)
    v = cases.direction(policy)
    sample = draw_sample(policy, batch, functional="per_token", method="prefix")
    floor = rounding_floor(policy, batch, v, sample)
    assert 0 < floor.log_weight < limit
    assert 0 < floor.smallest_eta(0.1) < 1e-2


def test_float32_scores_are_float64_scores_to_float32_rounding():
    batch = cases.ragged()
    long, short = (score(cases.policy("qwen2", precision=p), batch) for p in ("float64", "float32"))
    gap = float((long.logprobs - short.logprobs).abs().max())
    assert 0 < gap < 1e-5


def test_converting_to_float64_and_back_is_exact():
    policy = cases.policy("qwen2", precision="float32")
    before = {n: p.clone() for n, p in policy.theta.items()}
    policy.convert("float64").convert("float32")
    assert all(torch.equal(before[n], p) for n, p in policy.theta.items())
