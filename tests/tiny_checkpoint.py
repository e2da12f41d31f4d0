"""A tiny checkpoint as training leaves it: a base, a LoRA adapter, an AdamW state with names.

The policy answers "a+b=" with one digit out of 1, 2, 3 and EOS, whatever the question: right about
one time in three where the reference is one of them.
"""

import json
import shutil
from fnmatch import fnmatch
from functools import cache

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from isentrope import Rollouts
from isentrope.sampling.tasks.addition import character_tokenizer
from isentrope.system.files import MANIFEST, MARKER

REWARD = "def reward(response, reference):\n    return float(response[:1] == reference)\n"
PROMPTS = [f"{a}+{b}=" for a in range(6) for b in range(4)]


def _loss(model, tokenizer, rng):
    asked = torch.randint(len(PROMPTS), (32,), generator=rng)
    answers = torch.randint(1, 4, (32,), generator=rng).tolist()
    pairs = zip(asked.tolist(), answers, strict=True)
    ids = torch.tensor(
        [
            [*tokenizer(PROMPTS[i])["input_ids"], *tokenizer(str(a))["input_ids"], 1]
            for i, a in pairs
        ]
    )
    logits = model(input_ids=ids).logits[:, 3:-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 4:].flatten())


def _train(model, tokenizer, steps, rate, seed):
    rng = torch.Generator().manual_seed(seed)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=rate, weight_decay=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        _loss(model, tokenizer, rng).backward()
        optimizer.step()
    return optimizer


@cache
def _trained_base(steps, layers):
    """The base, once for each size, and the state of torch's numbers after it was made."""
    torch.manual_seed(0)
    tokenizer = character_tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    base = Qwen2ForCausalLM(config).eval()
    _train(base, tokenizer, steps, 1e-2, seed=0)
    return base, torch.get_rng_state()


def make_checkpoint(folder, names=("step_4",), *, steps=(80, 4), layers=2, targets="all-linear"):
    """Write base/, and one adapter checkpoint per name, each trained so many steps."""
    tokenizer = character_tokenizer()
    base, drawn = _trained_base(steps[0], layers)
    base.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    torch.set_rng_state(drawn)
    lora = LoraConfig(r=2, target_modules=targets, task_type="CAUSAL_LM")
    for seed, name in enumerate(names):
        model = get_peft_model(Qwen2ForCausalLM.from_pretrained(folder / "base"), lora).eval()
        optimizer = _train(model, tokenizer, steps[1], 1e-3, seed=seed + 1)
        model.peft_config["default"].base_model_name_or_path = str(folder / "base")
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        torch.save(optimizer.state_dict(), folder / name / "optimizer.pt")
        order = [n for n, p in model.named_parameters() if p.requires_grad]
        (folder / name / "parameter_names.json").write_text(json.dumps(order))
    write_prompts(folder / "prompts.jsonl", PROMPTS)
    return folder


def make_full_checkpoint(folder, trained=("*",)):
    """Write step_4, a whole model whose weights of these names were trained, beside its base."""
    make_checkpoint(folder)
    shutil.rmtree(folder / "step_4")
    model = Qwen2ForCausalLM.from_pretrained(folder / "base").eval()
    tokenizer = character_tokenizer()
    for name, p in model.named_parameters():
        p.requires_grad_(any(fnmatch(name, pattern) for pattern in trained))
    optimizer = _train(model, tokenizer, 4, 1e-4, seed=1)
    model.save_pretrained(folder / "step_4")
    tokenizer.save_pretrained(folder / "step_4")
    torch.save(optimizer.state_dict(), folder / "step_4" / "optimizer.pt")
    order = [n for n, p in model.named_parameters() if p.requires_grad]
    (folder / "step_4" / "parameter_names.json").write_text(json.dumps(order))
    return folder


def weighted_batch(tokenizer):
    """Eight responses to four prompts, with random token weights."""
    rng = torch.Generator().manual_seed(0)
    responses = [torch.tensor([4, 5, 1][k % 2 :]) for k in range(8)]
    return Rollouts(
        prompt_ids=[torch.tensor(tokenizer(PROMPTS[k // 2])["input_ids"]) for k in range(8)],
        response_ids=responses,
        prompt_index=torch.arange(8) // 2,
        token_weights=[torch.randn(len(r), generator=rng, dtype=torch.float64) for r in responses],
        max_new_tokens=3,
    )


def copied(tiny, folder, names=("step_4",)):
    """A copy of the base and of the first checkpoints, by other names, for tests that change it."""
    shutil.copytree(tiny / "base", folder / "base")
    shutil.copy(tiny / "prompts.jsonl", folder)
    for source, name in zip(("step_4", "checkpoint-8"), names, strict=False):
        shutil.copytree(tiny / source, folder / name)
        over_own_base(folder, name)
    return folder


def over_own_base(folder, name="step_4"):
    """Let an adapter name the base beside it, which a test can then change."""
    path = folder / name / "adapter_config.json"
    edit_json(path, base_model_name_or_path=str(folder / "base"))


def edit_json(path, **changes):
    """Change keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def as_made_elsewhere(folder):
    """Remove from a folder what says that isentrope wrote it, so that a test can change it."""
    for name in (MANIFEST, MARKER):
        (folder / name).unlink(missing_ok=True)
    return folder


def in_bfloat16(folder, target):
    """The same checkpoint as training in bfloat16 leaves it: adapter and moments."""
    shutil.copytree(folder, target)
    weights = target / "adapter_model.safetensors"
    save_file({k: x.bfloat16() for k, x in load_file(weights).items()}, weights)
    state = torch.load(target / "optimizer.pt", weights_only=True)
    for moments in state["state"].values():
        for key in ("exp_avg", "exp_avg_sq"):
            moments[key] = moments[key].bfloat16()
    torch.save(state, target / "optimizer.pt")
    return target


def write_chatty(folder):
    """A copy of step_4, chatty/step_4, whose tokenizer has a chat template."""
    tokenizer = character_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}{{ 1 if twice else 2 }}"
    )
    shutil.copytree(folder / "step_4", folder / "chatty" / "step_4", dirs_exist_ok=True)
    tokenizer.save_pretrained(folder / "chatty" / "step_4")


def write_prompts(path, prompts):
    """A prompts file; the reference is 1, 2 or 3 by turns."""
    lines = [json.dumps({"prompt": p, "reference": str(i % 3 + 1)}) for i, p in enumerate(prompts)]
    path.write_text("\n".join(lines))


def settings(folder, **sections):
    """A small configuration of the checkpoint in `folder`; sections are merged key by key."""
    content = {
        "checkpoint": {"checkpoint_path": str(folder / "step_4")},
        "batch_config": {
            "dataset_name": "prompts",
            "dataset_path": str(folder / "prompts.jsonl"),
            "B_E": 12,
            "B_U": 3,
            "G": 4,
        },
        "estimator": {"eta_list": [1e-4, 1e-3]},
        "sampling": {"max_new_tokens": 3},
    }
    return {
        name: content.get(name, {}) | sections.get(name, {}) for name in {**content, **sections}
    }


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with step_4 and checkpoint-8, their base, and prompts.jsonl.

    One layer and two adapted matrices are enough for what verbs do with a checkpoint; other tests
    cover deeper policies.
    """
    folder = tmp_path_factory.mktemp("tiny")
    names = ("step_4", "checkpoint-8")
    return make_checkpoint(folder, names, layers=1, targets=["q_proj", "v_proj"])


@pytest.fixture
def own(tiny, tmp_path):
    """A folder with step_4 to be changed, prompts.jsonl and rewards.py."""
    folder = copied(tiny, tmp_path / "own")
    (folder / "rewards.py").write_text(REWARD)
    return folder


@pytest.fixture
def recorded(own):
    """The same with the batch of the next step, as training records it."""
    record = own / "step_4" / "next_update"
    record.mkdir()
    weighted_batch(AutoTokenizer.from_pretrained(own / "step_4")).save(record / "rollouts.parquet")
    (record / "update.json").write_text(json.dumps({"step": 5, "learning_rate": 1e-3}))
    return own
