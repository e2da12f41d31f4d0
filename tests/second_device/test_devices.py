"""What a device has and the CPU has not: several of them, memory of its own, waiting for it."""

import os

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model

import isentrope as ise
from isentrope.attribution.gradients.gram import gram_plan
from isentrope.attribution.gradients.storage_plan import Storage
from isentrope.checkpoint import facts
from isentrope.checkpoint.checkpoint import StoredCheckpoint
from isentrope.config.io import load_config
from isentrope.config.measure import CheckpointConfig
from isentrope.config.stages import SamplingConfig
from isentrope.config.train import TrainConfig
from isentrope.models.sharding import shard_base
from isentrope.parallel.ranks import Ranks
from isentrope.policy.short_memory import tokens_in
from isentrope.system.memory import CONTEXT, libraries_bytes, memory_of
from isentrope.training.models import build_toy_policy
from isentrope.verbs.train import resume, train
from tests import cases
from tests.golden import scenes
from tests.tiny_checkpoint import make_checkpoint
from tests.training import runs

pytestmark = pytest.mark.second_device

DEVICE = torch.ops.second_device


@pytest.fixture
def limited():
    """Limits the memory of the device to so many bytes more than it holds."""
    yield lambda more: DEVICE.limit_memory(DEVICE.held(0) + more)
    DEVICE.limit_memory(0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("tiny"), layers=1)


def policy_of(layers=2, device="cuda"):
    lora = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    torch.manual_seed(0)
    model = get_peft_model(cases.model("qwen2", num_hidden_layers=layers), lora).eval()
    return ise.Policy(model.to(device), precision="float64", eos_token_id=0, pad_token_id=0)


def update_batch():
    advantages = torch.randn(8, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    return cases.ragged(8, seed=7).with_columns(advantages=advantages)


def step_of(policy):
    optimizer = torch.optim.AdamW([p for p in policy.model.parameters() if p.requires_grad], 1e-3)
    return ise.optimizer_step(policy, update_batch(), optimizer, max_response_length=9)


def answers(policy):
    """A number of every kind of pass, on the CPU."""
    E, U, step = cases.ragged(24, seed=1), update_batch(), step_of(policy)
    drawn = ise.sample(policy, [[1, 2], [3]], 8, max_new_tokens=6, seed=5)
    change = ise.entropy_change(policy, E, step.direction, [1e-3], order=2)
    table = ise.influence(policy, E, U, step, ise.InfluenceOptions(overlap="independent"))
    found = [change.first_order.value, change.second_order.value, change.points[0].change.value]
    return {
        "sampled": torch.cat(drawn.sampler_logprobs),
        "change": torch.tensor(found),
        "influence": table.entropy.tokens,
        "kernel": ise.fisher_kernel(policy, E, U, preconditioner=step.preconditioner).matrix,
    }


def close(found, expected):
    for name, x in expected.items():
        torch.testing.assert_close(found[name].cpu(), x.cpu(), rtol=1e-9, atol=1e-12, msg=name)


def waits(work):
    """How often the host waits for the device: numbers that it reads, tensors that it fetches."""
    before = DEVICE.counts()
    work()
    return sum(DEVICE.counts()[:2]) - sum(before[:2])


# ---- waiting


def test_passes_wait_equally_often_for_few_and_for_many_parameters():
    few, many = (policy_of(layers) for layers in (2, 5))
    assert len(many.names) > 2 * len(few.names)
    assert waits(lambda: answers(few)) == waits(lambda: answers(many))


@pytest.mark.parametrize("verb", ["measure", "influence"])
def test_a_verb_waits_equally_often_for_few_and_for_many_parameters(verb, tmp_path):
    counts = []
    for layers in (1, 3):
        folder = tmp_path / str(layers)
        folder.mkdir()
        where = {"checkpoint_path": str(make_checkpoint(folder, layers=layers) / "step_4")}
        sections = scenes.asked(
            folder,
            checkpoint=where | {"device_map": "cuda"},
            estimator={"eta_list": [1e-4]},
            batch_config=scenes.responses(folder),
            analysis={"overlap": "independent"},
            detailed_logging={"enabled": False},
        )
        arguments = [verb, scenes.write(folder, sections), "--out", folder / "run"]
        counts.append(waits(lambda given=arguments: scenes.call(*given)))
    assert counts[0] == counts[1]


def test_a_step_with_the_probe_waits_equally_often_for_few_and_for_many_parameters(tmp_path):
    def run(layers, steps):
        folder = tmp_path / f"{layers}_{steps}"
        folder.mkdir()
        command = scenes.train(make_checkpoint(folder, layers=layers), folder)
        command.sections["training"] |= {"steps": steps, "save_every": steps}  # saved once
        return waits(lambda: scenes.call(*command.arguments(folder, folder / "run")))

    of_two_steps = [run(layers, 4) - run(layers, 2) for layers in (1, 3)]
    # torch's own clipping of the gradient, and where checkpoints are looked through, aside
    assert of_two_steps[0] == of_two_steps[1]


# ---- memory


@pytest.mark.parametrize("more", [500_000, 900_000])
def test_where_its_memory_is_short_passes_are_smaller_and_numbers_the_same(more, limited, caplog):
    policy = policy_of()
    expected = answers(policy)
    limited(more)
    close(answers(policy), expected)
    assert "Memory is short" in caplog.text


def test_micro_batches_follow_the_free_memory(tiny, monkeypatch):
    where = CheckpointConfig(checkpoint_path=str(tiny / "step_4"), device_map="cuda")
    plain = StoredCheckpoint(tiny / "step_4").load(where, SamplingConfig())
    assert plain.max_tokens == SamplingConfig().most_tokens(on_card=True) == 16_384
    asked = StoredCheckpoint(tiny / "step_4").load(where, SamplingConfig(max_tokens=4096))
    assert asked.max_tokens == 4096
    monkeypatch.setattr(facts, "free_memory", lambda device: 4_000_000)
    short = StoredCheckpoint(tiny / "step_4").load(where, SamplingConfig())
    assert 1 < short.max_tokens < plain.max_tokens
    sizes = [tokens_in(memory, short.model, short.head) for memory in (1_000_000, 4_000_000)]
    assert sizes[1] > sizes[0] > 1


def test_gradients_that_do_not_fit_are_held_in_parts(limited):
    policy, E = policy_of(), cases.ragged(24, seed=1)
    expected = ise.fisher_kernel(policy, E).matrix
    limited(8 * sum(p.numel() for p in policy.theta.values()) * 30)
    assert len(gram_plan(policy, len(E), None, Storage()).tiles) > 1
    close({"kernel": ise.fisher_kernel(policy, E).matrix}, {"kernel": expected})


def test_a_plan_counts_the_context_of_the_device_and_not_the_memory_of_the_host(limited):
    limited(10**9)
    assert libraries_bytes("cuda") == CONTEXT
    assert memory_of("cuda:0") == 10**9 + CONTEXT
    assert libraries_bytes("cpu") != CONTEXT


# ---- which device


def test_a_device_that_is_not_there_is_refused_in_one_sentence(tiny, tmp_path):
    where = {"checkpoint_path": str(tiny / "step_4"), "device_map": "cuda:9"}
    asked = scenes.write(tmp_path, scenes.asked(tiny, checkpoint=where))
    with pytest.raises(AssertionError, match=r"device_map=cuda:9, but torch sees 1 CUDA device"):
        scenes.call("measure", asked, "--out", tmp_path / "run")


@pytest.mark.parametrize("verb", ["train", "sft"])
def test_a_training_that_cannot_fit_is_refused_before_any_work(verb, tiny, tmp_path, limited):
    command = getattr(scenes, verb)(tiny, tmp_path)
    limited(1000)
    with pytest.raises(AssertionError, match=r"training does not fit: it holds .* free on cuda"):
        scenes.call(*command.arguments(tmp_path, tmp_path / "run"))
    assert not list((tmp_path / "run").glob("**/*.safetensors"))


def test_a_model_on_two_devices_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setenv("SECOND_DEVICES", "2")
    model = policy_of().model
    model.get_base_model().model.layers[1].to("cuda:1")
    with pytest.raises(ValueError, match=r"spread over 2 devices: .* on cuda:0, .* on cuda:1"):
        ise.Policy(model, precision="float64", eos_token_id=0, pad_token_id=0)


def test_a_batch_whose_tensors_are_on_a_device_is_that_of_the_cpu():
    policy, made = policy_of(), update_batch()

    def on(device):
        columns = {
            "prompt_ids": made.prompt_ids,
            "response_ids": made.response_ids,
            "sampler_logprobs": [-torch.ones(len(r)) for r in made.response_ids],
            "response_mask": [torch.ones(len(r), dtype=torch.bool) for r in made.response_ids],
        }
        lists = {name: [x.to(device) for x in column] for name, column in columns.items()}
        return ise.Rollouts(
            **lists,
            prompt_index=made.prompt_index.to(device),
            advantages=made.advantages.to(device),
            rewards=made.advantages.to(device),
        )

    v = cases.direction(policy)
    one, other = (ise.entropy_change(policy, on(x), v, [1e-3], order=1) for x in ("cpu", "cuda"))
    assert one.first_order.value == other.first_order.value


def test_a_second_device_leaves_the_first_alone(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("SECOND_DEVICES", "2")
    DEVICE.forget_peak(0)
    before = DEVICE.peak(0)
    where = {"checkpoint_path": str(tiny / "step_4"), "device_map": "cuda:1"}
    asked = scenes.write(tmp_path, scenes.asked(tiny, checkpoint=where))
    scenes.call("measure", asked, "--out", tmp_path / "run")
    assert DEVICE.peak(0) == before
    assert DEVICE.peak(1) > 0


def test_one_process_trains_on_one_of_two_devices(tiny, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("SECOND_DEVICES", "2")
    command = scenes.sft(tiny, tmp_path)
    scenes.call(*command.arguments(tmp_path, tmp_path / "run"))
    assert "trains on one of 2 GPUs" in caplog.text
    assert (tmp_path / "run" / "model").is_dir()


def test_random_weights_leave_the_generators_of_a_device_alone():
    before = torch.cuda.get_rng_state()
    build_toy_policy(3)
    assert torch.equal(torch.cuda.get_rng_state(), before)


# ---- what is read from files, or computed, on the CPU


def test_a_run_under_an_entropy_budget_resumes_bit_for_bit(tmp_path):
    options = {"size": 16, "average": 2}
    control = {"name": "budget", "target": {"kind": "hold"}, "options": options}

    def run(name, steps):
        training = {"steps": steps, "save_every": 1}
        made = runs.settings(tmp_path, training=training, control=control)
        made["output"] |= {"directory": str(tmp_path / name)}
        train(load_config(made, root=TrainConfig))
        return tmp_path / name

    whole, parts = run("whole", 4), run("parts", 2)
    resume(parts, ["training.steps=4"])
    last = [runs.parameters(folder, 4) for folder in (whole, parts)]
    assert all(torch.equal(x, last[1][name]) for name, x in last[0].items())
    assert "control/lambda" in runs.lines(parts)[-1]


def test_the_oracle_is_that_of_the_cpu():
    here, there = (policy_of(device=device) for device in ("cpu", "cuda"))
    exact = [ise.oracle.enumerate_policy(p, [[1], [2]], max_new_tokens=2) for p in (here, there)]
    v = cases.direction(here)
    gradients = [e.entropy_gradient() for e in exact]
    assert exact[0].entropy() == pytest.approx(exact[1].entropy(), rel=1e-9)
    assert exact[0].derivatives(v) == pytest.approx(exact[1].derivatives(v), rel=1e-6)
    close(gradients[1], gradients[0])


# ---- a group of NCCL, which carries tensors of devices alone


@pytest.fixture
def nccl(monkeypatch):
    """A process of two in a group of NCCL; the other one is taken to have the same."""

    def carry(*tensors, **_):
        flat = [x for t in tensors for x in (t if isinstance(t, list) else [t])]
        assert all(x.is_cuda for x in flat if isinstance(x, torch.Tensor)), "of the CPU"

    def gather(everyone, content, **_):
        everyone[:] = [content] * len(everyone)

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda *_: "nccl")
    monkeypatch.setattr(dist, "get_rank", lambda *_: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda *_: 2)
    for name in ("all_reduce", "all_gather", "broadcast", "reduce_scatter_tensor"):
        monkeypatch.setattr(dist, name, carry)
    monkeypatch.setattr(dist, "all_gather_object", gather)
    return Ranks(0, 2)


def test_collectives_get_tensors_of_the_device_alone(nccl, monkeypatch):
    everything = lambda self, sizes: [sorted(range(len(sizes)), key=lambda i: -sizes[i]), []]  # noqa: E731
    monkeypatch.setattr(Ranks, "deal", everything)
    policy = policy_of()
    policy.ranks = nccl
    E, U = cases.ragged(24, seed=1), update_batch()
    step = step_of(policy)
    ise.entropy_change(policy, E, step.direction, [1e-3], order=2)
    ise.influence(policy, E, U, step, ise.InfluenceOptions(overlap="independent"))
    ise.fisher_kernel(policy, E, U, preconditioner=step.preconditioner)


def test_a_base_on_the_cpu_is_not_spread_over_a_group_of_nccl(nccl):
    with pytest.raises(ValueError, match="cpu:gloo,cuda:nccl"):
        shard_base(policy_of(device="cpu").model, "cpu")


def test_the_group_of_torchrun_carries_tensors_of_both(monkeypatch):
    from accelerate import state

    from isentrope.system import processes

    monkeypatch.setitem(os.environ, "WORLD_SIZE", "2")
    asked = {}
    monkeypatch.setattr(state, "PartialState", lambda **options: asked.update(options))
    monkeypatch.setattr("accelerate.PartialState", state.PartialState)
    processes.join_processes()
    assert asked == {"backend": "cpu:gloo,cuda:nccl"}
