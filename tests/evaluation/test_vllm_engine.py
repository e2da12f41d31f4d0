"""The adapter to vLLM against a stand-in for its interface; vLLM itself is not run here."""

import sys
from importlib.metadata import PackageNotFoundError
from types import ModuleType, SimpleNamespace

import pytest
import torch

from isentrope import Prompt
from isentrope.evaluation import vllm_engine
from isentrope.evaluation.vllm_engine import VllmEngine, require_vllm
from isentrope.sampling.prompts import as_prompts
from tests.training.conftest import small_policy

OPTIONS = {
    "base_model": None,
    "allow_hub": True,
    "dtype": "bfloat16",
    "temperature": 0.7,
    "max_new_tokens": 4,
}


class StandIn:
    """Answers every prompt with its own first token and EOS; keeps what it was given."""

    def __init__(self, **options):
        self.options, self.calls = options, []

    def generate(self, prompts, parameters, *, use_tqdm, lora_request):
        self.calls.append((prompts, parameters, lora_request))
        pairs = zip(prompts, parameters, strict=True)
        return [
            SimpleNamespace(outputs=[answer(p["prompt_token_ids"][0])] * given.n)
            for p, given in pairs
        ]


def answer(token):
    logprobs = [{token: SimpleNamespace(logprob=-0.25)}, {1: SimpleNamespace(logprob=-0.5)}]
    return SimpleNamespace(token_ids=(token, 1), logprobs=logprobs)


@pytest.fixture
def vllm(monkeypatch):
    """A module vllm of an accepted version."""
    fake, lora, request = (ModuleType(n) for n in ("vllm", "vllm.lora", "vllm.lora.request"))
    fake.LLM, fake.SamplingParams = StandIn, SimpleNamespace
    request.LoRARequest = lambda *given: given
    for module in (fake, lora, request):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(vllm_engine, "version", lambda name: "0.25.1")


@pytest.fixture
def adapters(tmp_path):
    """Two adapters of rank 12."""
    for name in ("step_1", "step_2"):
        (tmp_path / name).mkdir()
        text = '{"base_model_name_or_path": "some/base", "peft_type": "LORA", "r": 12}'
        (tmp_path / name / "adapter_config.json").write_text(text)
    return [tmp_path / "step_1", tmp_path / "step_2"]


def prompts(policy):
    return as_prompts(policy, [Prompt(f"sum/{i}", text=f"{i}+1=", reference="3") for i in (2, 5)])


def test_responses_arrive_as_rollouts_with_the_samplers_log_probabilities(vllm, adapters):
    policy = small_policy()
    engine = VllmEngine(adapters[0], memory=0.4, seed=7, **OPTIONS)
    made = engine.respond(policy, adapters[0], prompts(policy), 0, 3, "sampled")
    assert made.response_texts == ["2"] * 3 + ["5"] * 3
    assert made.prompt_index.tolist() == [0, 0, 0, 1, 1, 1]
    assert made.prompt_keys == ["sum/2"] * 3 + ["sum/5"] * 3
    assert made.references == ["3"] * 6
    torch.testing.assert_close(made.sampler_logprobs[0], torch.tensor([-0.25, -0.5]).double())


def test_nothing_is_filtered_and_every_prompt_has_its_own_seed(vllm, adapters):
    policy = small_policy()
    engine = VllmEngine(adapters[0], memory=0.4, seed=7, **OPTIONS)
    engine.respond(policy, adapters[0], prompts(policy), 0, 3, "sampled")
    engine.respond(policy, adapters[0], prompts(policy)[1:], 1, 1, "greedy")
    (_, sampled, _), (_, greedy, _) = engine._llm.calls
    for given in sampled:
        assert (given.n, given.temperature, given.max_tokens) == (3, 0.7, 4)
        assert (given.top_p, given.top_k, given.min_p) == (1.0, 0, 0.0)
        assert given.stop_token_ids == list(policy.eos_token_ids)
    assert greedy[0].temperature == 0
    assert sampled[0].seed != sampled[1].seed == greedy[0].seed  # of the prompt, whatever the chunk


def test_one_base_serves_the_adapters_of_all_checkpoints(vllm, adapters):
    policy = small_policy()
    engine = VllmEngine(adapters[0], memory=0.4, seed=7, **OPTIONS)
    for folder in (*adapters, adapters[0]):
        engine.respond(policy, folder, prompts(policy), 0, 1, "sampled")
    assert [request[1:] for _, _, request in engine._llm.calls] == [
        (1, str(adapters[0])),
        (2, str(adapters[1])),
        (1, str(adapters[0])),
    ]
    options = engine._llm.options
    assert (options["model"], options["max_lora_rank"]) == ("some/base", 16)
    assert options["logprobs_mode"] == "processed_logprobs"


def test_a_full_model_needs_no_adapter(vllm, tmp_path):
    policy = small_policy()
    engine = VllmEngine(tmp_path, memory=0.4, seed=7, **OPTIONS)
    engine.respond(policy, tmp_path, prompts(policy), 0, 1, "sampled")
    assert engine._llm.options["model"] == str(tmp_path)
    assert engine._llm.calls[0][2] is None


@pytest.mark.parametrize(("found", "said"), [("0.21.9", "from 0.22"), ("0.32.0", "before 0.32")])
def test_other_versions_are_refused(monkeypatch, adapters, found, said):
    monkeypatch.setattr(vllm_engine, "version", lambda name: found)
    with pytest.raises(ImportError, match=said):
        require_vllm(adapters, 1)


def test_what_it_cannot_serve_is_refused(vllm, adapters, tmp_path):
    require_vllm(adapters, 1)
    require_vllm([tmp_path], 1)
    with pytest.raises(ValueError, match="full model"):
        require_vllm([*adapters, tmp_path], 1)
    with pytest.raises(ValueError, match="one process"):
        require_vllm(adapters, 2)


def test_it_is_refused_where_it_is_not_installed(monkeypatch, adapters):
    def absent(name):
        raise PackageNotFoundError

    monkeypatch.setattr(vllm_engine, "version", absent)
    with pytest.raises(ImportError, match="vllm"):
        require_vllm(adapters, 1)
