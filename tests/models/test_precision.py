import contextlib
import subprocess
import sys

import pytest
import torch

from isentrope import Policy, Precision, score
from isentrope.estimators.rounding_floor import rounding_floor
from isentrope.estimators.sample import score_batch
from isentrope.models.float_switches import RoundingOperations, matmul_switches
from tests import cases

SET_BEFORE = (
    "",
    "torch.set_float32_matmul_precision('high'); b.cudnn.allow_tf32 = True",
    "torch.set_float32_matmul_precision('medium')",
    "b.cuda.matmul.allow_tf32 = False; b.cudnn.allow_tf32 = False",
    "b.fp32_precision = 'tf32'",
    "b.fp32_precision = 'ieee'",
    "b.cuda.matmul.fp32_precision = 'tf32'; b.mkldnn.matmul.fp32_precision = 'bf16'",
    "b.cudnn.fp32_precision = 'tf32'; b.cuda.matmul.fp32_precision = 'ieee'",
    "torch.set_float32_matmul_precision('high'); b.fp32_precision = 'tf32'",
)
IN_A_FRESH_PROCESS = """
import os, sys, torch
from isentrope.models.precision import Precision
b = torch.backends
leaves = [b.cuda.matmul, b.cudnn.conv, b.cudnn.rnn, b.mkldnn.matmul, b.mkldnn.conv, b.mkldnn.rnn]

def legacy(read):
    try:
        return read()
    except RuntimeError:  # torch's answer to a mix of its two interfaces
        return "mixed"

def state():  # every switch, also as it is once the root moves: whether it follows
    found, root = [], b.fp32_precision
    found += [legacy(torch.get_float32_matmul_precision), legacy(lambda: b.cudnn.allow_tf32)]
    for value in ("tf32", "ieee", root):
        b.fp32_precision = value
        found += [b.cudnn.fp32_precision, *(x.fp32_precision for x in leaves)]
    return found

def check():
    for onednn, allow, matmul in (
        ("ieee", False, "highest"), ("ieee", True, "highest"), ("tf32", True, "high"),
        ("bf16", True, "medium"),
    ):
        with Precision("float32", allow_tf32=allow, matmul_precision=matmul).active():
            inside = [x.fp32_precision for x in leaves]
            assert inside == ["tf32" if allow else "ieee"] * 3 + [onednn] * 3, inside
            with Precision("float64").active():
                assert {x.fp32_precision for x in leaves} == {"ieee"}
            assert [x.fp32_precision for x in leaves] == inside
        assert state() == expected, (expected, state())

for before in sys.argv[1:]:
    if not (child := os.fork()):  # each from the switches of a fresh process
        exec(before)
        expected = state()
        check()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, before
"""


def test_tf32_is_really_off_inside_and_restored_outside():
    command = [sys.executable, "-W", "ignore", "-c", IN_A_FRESH_PROCESS]
    subprocess.run([*command, *SET_BEFORE], check=True)


def test_switches_are_restored_after_an_error():
    before, inside = matmul_switches(), None
    with contextlib.suppress(KeyError), Precision("float32", allow_tf32=True).active():
        inside = matmul_switches()
        raise KeyError
    assert inside != before == matmul_switches()


def test_high_matmul_precision_contradicts_tf32_off():
    with pytest.raises(ValueError, match="TF32"):
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
    assert plain.rounded
    assert not ours.rounded


def test_a_model_that_rounds_inside_float64_is_refused():
    class Rounding(torch.nn.Linear):
        def forward(self, x):
            return super().forward(torch.empty_like(x).copy_(x.type("torch.FloatTensor")))

    model = cases.model("qwen2")
    layer = model.model.layers[0].mlp
    layer.up_proj.__class__ = Rounding
    with pytest.raises(ValueError, match="float64"):
        Policy(model)


@pytest.mark.parametrize(("precision", "limit"), [("float64", 1e-10), ("float32", 1e-4)])
def test_rounding_floor_is_below_its_bound_and_above_zero(precision, limit):
    exact = cases.exact("llama")
    batch, policy = exact.sample(64, 0), cases.policy("llama", precision=precision)
    v = cases.direction(policy)
    sample = score_batch(policy, batch)
    floor = rounding_floor(policy, batch, v, sample, 0.1)
    assert 0 < floor.log_weight < limit
    assert 0 < floor.smallest_eta < 1e-2


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
