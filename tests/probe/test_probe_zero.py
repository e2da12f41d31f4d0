"""Steps of DeepSpeed's ZeRO stages 1 and 2, read by the probe: those of a trainer without it."""

import json
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from isentrope import Policy
from isentrope.probe.coming_step import moving_parts
from isentrope.probe.partitioned_step import PartitionedStep, zero_optimizer
from isentrope.probe.requirements import require_whole_parameters
from tests import cases
from tests.probe import following
from tests.probe.zero_probe import CASES
from tests.torchrun import torchrun

RATE, PADDING = 1e-2, 3


class OneProcess:
    """DeepSpeed's optimizer of one process: flat, padded, and in another order."""

    def __init__(self, model):
        trained = [p for p in model.parameters() if p.requires_grad]
        self.bit16_groups = [trained[::2], trained[1::2]]
        self.round_robin_bit16_groups = [group[::-1] for group in self.bit16_groups]
        self.round_robin_bit16_padding = [[PADDING] * len(g) for g in self.bit16_groups]
        self.real_dp_process_group = [None, None]
        self.single_partition_of_fp32_groups = [
            nn.Parameter(self.flat([p.detach() for p in g])) for g in self.round_robin_bit16_groups
        ]
        groups = [{"params": [flat]} for flat in self.single_partition_of_fp32_groups]
        self.optimizer = torch.optim.AdamW(groups, lr=RATE, weight_decay=0.1)

    def flat(self, tensors):
        behind = torch.zeros(PADDING)
        return torch.cat([x for t in tensors for x in (t.float().flatten(), behind)])

    def step(self, gradient):
        """As DeepSpeed does: group by group, and the weights at the end."""
        groups = self.optimizer.param_groups
        for k, of_group in enumerate(self.round_robin_bit16_groups):
            flat = self.single_partition_of_fp32_groups[k]
            flat.grad = self.flat([gradient[p] for p in of_group])
            self.optimizer.param_groups = [groups[k]]
            self.optimizer.step()
            flat.grad, self.optimizer.param_groups = None, groups
        for k, of_group in enumerate(self.round_robin_bit16_groups):
            start = 0
            for p in of_group:
                moved = self.single_partition_of_fp32_groups[k].detach()[start : start + p.numel()]
                p.data.copy_(moved.view(p.shape))
                start += p.numel() + PADDING


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_step_is_whole_and_the_model_is_where_it_began(dtype):
    model = cases.lora_policy("qwen2").model.to(dtype)
    policy = Policy(model, precision="as_is", eos_token_id=0, pad_token_id=0)
    zero = OneProcess(model)
    assert zero_optimizer(SimpleNamespace(optimizer=zero)) is zero_optimizer(zero) is zero
    trained = [p for p in model.parameters() if p.requires_grad]
    same = torch.optim.AdamW([p.detach().float() for p in trained], lr=RATE, weight_decay=0.1)
    copies = dict(zip(trained, same.param_groups[0]["params"], strict=True))
    rng = torch.Generator().manual_seed(0)
    for _ in range(2):
        gradient = {p: torch.randn(p.shape, generator=rng) for p in trained}
        begun = {p: p.detach().clone() for p in trained}
        step = PartitionedStep(model, zero)
        zero.step(gradient)
        ended = {p: p.detach().clone() for p in trained}
        with step.at_start() as optimizer:
            named = {n: model.get_parameter(n) for n in policy.names}
            for n, p in named.items():
                assert torch.equal(p, begun[p])
                assert torch.equal(optimizer.gradient[n], gradient[p])
                for key, x in same.state[copies[p]].items():
                    torch.testing.assert_close(optimizer.optimizer["state"][n][key], x)
            v = {n: (ended[p].double() - begun[p]) / RATE for n, p in named.items()}
            half = {n: x / 2 for n, x in v.items()}
            rest = step.rounding(policy, half, RATE)
            assert bool(rest) == (dtype == torch.bfloat16)
            for n, x in rest.items():
                torch.testing.assert_close(x, v[n] / 2)
            assert step.rounding(policy, half, 0.0) == {}  # the first rate of a warmup
        for p, copy in copies.items():
            assert torch.equal(p, ended[p])
            copy.grad = gradient[p]
        same.step()


@pytest.mark.usefixtures("alone")
def test_a_step_that_was_skipped_has_no_optimizer():
    model = cases.lora_policy("qwen2").model
    step = PartitionedStep(model, OneProcess(model))
    with step.at_start() as optimizer:
        assert optimizer is None


@pytest.mark.parametrize(
    ("stage", "config", "said"),
    [
        (0, {}, "ZeRO stage 0"),
        (3, {}, "ZeRO stage 3"),
        (2, {"optimizer": {"type": "AdamW"}}, "names its own .AdamW"),
        (1, {"data_types": {"grad_accum_dtype": "fp32"}}, "BF16_Optimizer"),
    ],
)
def test_what_cannot_be_read_under_deepspeed_is_refused(stage, config, said):
    plugin = SimpleNamespace(zero_stage=stage, deepspeed_config=config)
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin)),
        is_deepspeed_enabled=True,
        is_fsdp_enabled=False,
    )
    with pytest.raises(ValueError, match=said):
        require_whole_parameters(trainer)


def test_moving_parts_of_a_step_that_was_skipped_are_none():
    assert moving_parts(None, None, None)[:2] == ({}, 0.0)


def run(folder, case, *alone):
    torchrun(2, "tests.probe.zero_probe", case, folder, *alone)
    name = "_".join((case, *alone))
    return json.loads((folder / f"{name}.json").read_text()), torch.load(folder / f"{name}.pt")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
def test_readings_under_deepspeed_are_those_of_the_same_run_without_it(tmp_path):
    following.adapted(tmp_path)
    expected, _ = run(tmp_path, "plain")
    for case in CASES.keys() - {"plain"}:
        found, trained = run(tmp_path, case)
        _, alone = run(tmp_path, case, "alone")
        assert all(torch.equal(trained[n], x) for n, x in alone.items())
        assert len(found) == len(expected) == 3
        for reading, other in zip(found, expected, strict=True):
            if case == "short" and reading["probe/eta"] == 0:
                assert reading["probe/change"] == 0
                continue
            if case == "short":
                part = abs(reading["probe/residual"]) / abs(reading["probe/change"])
                assert part < 0.3  # 0.1 without rounding
                assert "probe/rounding" in reading
                continue
            assert reading.keys() == other.keys()
            size = abs(other["probe/change"])
            assert reading == pytest.approx(other, rel=1e-4, abs=1e-5 * size, nan_ok=True)
