"""Every key of an evaluation does what it is for; no crash passes for an effect."""

import pytest

from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import ConfigError
from isentrope.config.keys import all_keys
from tests.verbs import evaluating

QUICK = ("evaluation.n_prompts=6", "evaluation.samples_per_prompt=2", "evaluation.chunk_prompts=4")
GPU = (*QUICK, "precision.sampler_dtype=bfloat16")
CHAT = (*QUICK, "checkpoint.checkpoint_path=@/chatty/step_4")
TEMPLATE = (*CHAT, "data.chat_template=true")
ADDITION = (*QUICK, "data.dataset_path=null", "data.dataset_name=addition")
NUMBERS = {  # both evaluations complete, and a number of the table differs by more than rounding
    "checkpoint.checkpoint_path": (QUICK, "@/checkpoint-8"),
    "data.dataset_path": (QUICK, "@/half.jsonl"),
    "data.chat_template": (CHAT, "true"),
    "data.system_prompt": (TEMPLATE, "1+"),
    "data.chat_template_kwargs": (TEMPLATE, "{twice: true}"),
    "evaluation.metrics": (QUICK, "[pass_at_k]"),
    "evaluation.n_prompts": (QUICK, "5"),
    "evaluation.samples_per_prompt": (QUICK, "3"),
    "evaluation.ks": (QUICK, "[1]"),
    "evaluation.greedy": (QUICK, "false"),
    "evaluation.right_above": (QUICK, "-1"),
    "sampling.temperature": (QUICK, "0.5"),
    "sampling.max_new_tokens": (QUICK, "1"),
}
FILES = {  # both complete with the same numbers and leave other files
    "evaluation.save_tokens": (QUICK, "false"),
    "output.directory": (QUICK, "@/somewhere"),
    "output.name": (QUICK, "named"),
}
CALLS = {  # the calls up to this function are others; each evaluation ends there
    "checkpoint.base_model": (QUICK, "@/other_base", "from_checkpoint"),
    "checkpoint.allow_hub": (QUICK, "true", "from_checkpoint"),
    "checkpoint.device_map": (QUICK, "cuda:7", "from_checkpoint"),
    "checkpoint.verify": (QUICK, "false", "from_checkpoint"),
    "checkpoint.quantization": (
        (*QUICK, "precision.runtime_dtype=float32"),
        "4bit",
        "from_checkpoint",
    ),
    "data.dataset_name": (ADDITION, "addition_chat", "load_task"),
    "data.dataset_options": (ADDITION, "{limit: 40}", "load_task"),
    "data.split": (ADDITION, "train", "load_task"),
    "evaluation.seed": (QUICK, "3", "draw_responses"),
    "evaluation.chunk_prompts": (QUICK, "2", "draw_responses"),
    "precision.runtime_dtype": (QUICK, "float32", "at_precision"),
    "precision.entropy_dtype": (QUICK, "float32", "at_precision"),
    "precision.allow_tf32": (QUICK, "true", "at_precision"),
    "precision.matmul_precision": ((*QUICK, "precision.allow_tf32=true"), "high", "at_precision"),
    "precision.sampler_dtype": (QUICK, "bfloat16", "draw_responses"),
    "sampling.batch_size": (QUICK, "1", "draw_responses"),
    "sampling.max_tokens": (QUICK, "16", "from_checkpoint"),
    "sampling.vocab_chunk": (QUICK, "7", "from_checkpoint"),
    "sampling.vllm_memory": ((*GPU, "sampling.engine=vllm"), "0.3", "LLM"),
    "output.log_level": (QUICK, "WARNING", "setLevel"),
}
REFUSED_WITH = {  # only the evaluation with the value is refused, in a sentence with the noun
    "checkpoint.shard_base": (QUICK, "true", ValueError, "torchrun"),
    "sampling.engine": (GPU, "vllm", RuntimeError, "no device"),  # as the pretended vllm says
    "sampling.top_k": (QUICK, "5", ConfigError, "top_k=5"),
    "sampling.top_p": (QUICK, "0.5", ConfigError, r"top_p=0\.5"),
}


@pytest.fixture
def run(tiny, tmp_path, monkeypatch):
    """Observe an evaluation with settings, and with a value of a key beside them."""
    evaluating.prepare(tiny)

    def observed(given, *more, until=None):
        folder = tmp_path / ("after" if more else "before")
        return evaluating.observe(tiny, folder, (*given, *more), monkeypatch, until=until)

    return observed


def test_the_list_is_complete():
    listed = [key for kind in (NUMBERS, FILES, CALLS, REFUSED_WITH) for key in kind]
    cure = "say in a list of this file what the key does"
    assert sorted(listed) == sorted(key for key in all_keys(EvaluateConfig) if "." in key), cure


@pytest.mark.parametrize("key", NUMBERS)
def test_the_key_changes_the_numbers(key, pair):
    given, value = NUMBERS[key]
    before, after = pair(given, f"{key}={value}")
    assert "numbers" in before.differences(after)


@pytest.mark.parametrize("key", FILES)
def test_the_key_changes_the_files_and_no_number(key, pair):
    given, value = FILES[key]
    before, after = pair(given, f"{key}={value}")
    assert "files" in before.differences(after)
    assert "numbers" not in before.differences(after)


@pytest.mark.parametrize("key", CALLS)
def test_the_key_changes_a_call(key, pair, monkeypatch):
    given, value, function = CALLS[key]
    if key == "checkpoint.device_map":  # the evaluation ends before anything is put there
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (2**40, 2**40))
    before, after = pair(given, f"{key}={value}", until=function)
    assert before.calls[-1][0] == after.calls[-1][0] == function
    assert before.calls != after.calls


@pytest.mark.parametrize("key", REFUSED_WITH)
def test_a_value_of_the_key_is_refused(key, run, before):
    given, value, kind, noun = REFUSED_WITH[key]
    before(given)
    with pytest.raises(kind, match=noun):
        run(given, f"{key}={value}")


def test_nothing_changes_where_no_key_does(pair):
    before, after = pair(QUICK, "output.log_level=INFO")
    assert before == after
