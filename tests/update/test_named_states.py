"""States whose keys are names: FSDP, DCP, verl and accelerate save them so."""

import copy

import pytest
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torch.optim import SGD, AdamW

from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.parameter_names import plain_name
from isentrope.update.step import compute_step
from tests.update.plain import MAX_LENGTH, build_batch, build_policy, relative_error, train

TRAINED = {}


def trained_policy(adaptation="lora"):
    """A policy and its optimizer, made once; nothing here changes them."""
    if adaptation not in TRAINED:
        policy = build_policy(adaptation)
        parameters = [p for p in policy.model.parameters() if p.requires_grad]
        optimizer = train(policy, AdamW(parameters, lr=1e-3, weight_decay=0.1), steps=1)
        TRAINED[adaptation] = policy, optimizer
    return TRAINED[adaptation]


def named(policy, optimizer, order=None, spell=lambda name: name):
    """The state keyed by names, in any order."""
    saved = copy.deepcopy(optimizer.state_dict())
    order = list(order or range(len(policy.names)))
    keys = [spell(name) for name in policy.names]
    group = saved["param_groups"][0] | {"params": [keys[i] for i in order]}
    return {"state": {keys[i]: saved["state"][i] for i in order}, "param_groups": [group]}


def swapped(policy):
    """An order that exchanges two parameters of one shape."""
    order = list(range(len(policy.names)))
    i, j = _pair(policy)
    order[i], order[j] = j, i
    return order


def _pair(policy):
    first = next(n for n in policy.names if "1.self_attn.k_proj" in n and n.endswith("weight"))
    return policy.names.index(first), policy.names.index(first.replace("k_proj", "v_proj"))


def middle(name, part):
    """A name with a wrapper's part before the layer's number."""
    return name.replace("layers.", f"layers.{part}.", 1) if "layers." in name else f"{part}.{name}"


SPELLINGS = {
    "as the model": lambda n: n,
    "FSDP": lambda n: middle(n, "_fsdp_wrapped_module"),
    "activation checkpointing": lambda n: middle(n, "_checkpoint_wrapped_module"),
    "torch.compile": lambda n: f"_orig_mod.{n}",
    "DDP of compiled": lambda n: f"module._orig_mod.{n}",
    "compiled DDP": lambda n: f"_orig_mod.module.{n}",
    "no PEFT prefix": lambda n: n.removeprefix("base_model.model."),
    "no adapter name": lambda n: n.replace(".default.", "."),
    "an adapter of another name": lambda n: n.replace(".default.", ".actor."),
    "all": lambda n: "module." + middle(n, "_fsdp_wrapped_module._checkpoint_wrapped_module"),
}


@pytest.mark.parametrize(
    ("spelling", "adaptation"), [*((spelling, "lora") for spelling in SPELLINGS), ("all", "full")]
)
def test_names_decide_whatever_the_order_and_the_wrappers(adaptation, spelling):
    policy, optimizer = trained_policy(adaptation)
    found = load_optimizer_state(
        policy, named(policy, optimizer, swapped(policy), SPELLINGS[spelling])
    )
    expected = load_optimizer_state(policy, optimizer)
    assert found.matched_by == "names"
    for name in policy.names:
        assert torch.equal(found.moments[name]["exp_avg"], expected.moments[name]["exp_avg"])


def by_file(saved):
    """Names in the states' keys alone, one group without params."""
    group = {k: v for k, v in saved["param_groups"][0].items() if k != "params"}
    return saved | {"param_groups": [group]}


def by_param_names(saved):
    """Positions in params, names in param_names and in the states' keys."""
    names = saved["param_groups"][0]["params"]
    numbers = {"params": list(range(len(names))), "param_names": names}
    return saved | {"param_groups": [saved["param_groups"][0] | numbers]}


def flattened(saved):
    """DCP's flattened form."""
    group = saved["param_groups"][0]
    flat = {
        f"state.{name}.{k}": v for name, state in saved["state"].items() for k, v in state.items()
    }
    settings = {k: v for k, v in group.items() if k != "params"}
    rows = {f"param_groups.{n}.{k}": v for n in group["params"] for k, v in settings.items()}
    return flat | rows


@pytest.mark.parametrize(
    "form", [by_file, by_param_names, flattened, lambda s: {"opt": s, "step": 4}]
)
def test_every_form_of_a_named_state_is_read(tmp_path, form):
    policy, optimizer = trained_policy()
    torch.save(form(named(policy, optimizer, swapped(policy))), tmp_path / "optimizer.bin")
    found = load_optimizer_state(policy, tmp_path / "optimizer.bin")
    expected = load_optimizer_state(policy, optimizer)
    assert found.matched_by == "names"
    for name in policy.names:
        assert torch.equal(found.moments[name]["exp_avg_sq"], expected.moments[name]["exp_avg_sq"])


def rename(old, new):
    def change(saved):
        saved["state"] = {k.replace(old, new): v for k, v in saved["state"].items()}
        group = saved["param_groups"][0]
        group["params"] = [name.replace(old, new) for name in group["params"]]

    return change


def drop(saved):
    name = saved["param_groups"][0]["params"].pop()
    del saved["state"][name]


def groups_of_numbers(saved):
    group = saved["param_groups"][0]
    saved["param_groups"] = [group | {"params": [0, 1]}, group | {"params": [2, 3]}]


def twice(saved):
    first = saved["param_groups"][0]["params"][0]
    saved["param_groups"][0]["params"].append(f"module.{first}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (rename("q_proj", "c_attn"), r"parameter '.*c_attn.*policy"),
        (rename("q_proj.lora_A.default", "q_proj.lora_A.ref"), r"ref.*policy"),
        (rename("k_proj.lora_A.default.weight", "_flat_param"), r"flattened one of FSDP"),
        (drop, r"parameter '.*1 of 28 .*checkpoint.trainable"),
        (twice, r"lora_A.* is listed twice"),
        (groups_of_numbers, r"which parameter .*group"),
        (lambda s: s["param_groups"][0]["params"].append(3), "names and numbers"),
        (lambda s: s["state"].update(x={}), "parameter 'x', .*group"),
        (lambda s: s["param_groups"].append({"lr": 1.0, "params": [0]}), "names and numbers"),
    ],
)
def test_names_that_fit_nothing_are_refused_and_never_replaced_by_order(change, words):
    policy, optimizer = trained_policy()
    saved = named(policy, optimizer)
    change(saved)
    with pytest.raises(ValueError, match=words):
        load_optimizer_state(policy, saved)


def test_a_list_that_contradicts_the_states_own_names_is_refused():
    policy, optimizer = trained_policy()
    saved, other = named(policy, optimizer), list(policy.names)
    i, j = _pair(policy)
    other[i], other[j] = other[j], other[i]
    with pytest.raises(ValueError, match=r"k_proj.*own name.*v_proj"):
        load_optimizer_state(policy, saved, names=other)
    assert load_optimizer_state(policy, saved, names=policy.names).matched_by == "names"


def test_tied_weights_may_have_either_of_their_names():
    policy = build_policy("full")
    policy.model.lm_head.weight = policy.model.get_input_embeddings().weight
    tied = type(policy)(policy.model, eos_token_id=1, pad_token_id=0)
    optimizer = train(tied, SGD(tied.model.parameters(), lr=1e-3, momentum=0.9))
    saved = named(tied, optimizer, spell=lambda n: n.replace("model.embed_tokens", "lm_head"))
    assert load_optimizer_state(tied, saved).matched_by == "names"


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("module.base_model.model.lm_head.lora_A.default.weight", "lm_head.lora_A.weight"),
        ("_orig_mod.layers.0._fsdp_wrapped_module.q.weight", "layers.0.q.weight"),
        ("base_model.model.x.lora_embedding_A.default", "x.lora_embedding_A"),
        ("module", "module"),
        ("head.module.weight", "head.module.weight"),
    ],
)
def test_plain_names(name, plain):
    assert plain_name(name) == plain


@pytest.fixture
def one_process():
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def test_what_fsdp_gathers_is_matched_and_what_it_holds_is_refused(one_process, tmp_path):
    policy = build_policy("full")
    sharded = copy.deepcopy(policy.model)
    for layer in sharded.model.layers:
        fully_shard(layer)
    fully_shard(sharded)
    theirs = AdamW(list(sharded.parameters())[::-1], lr=1e-3, weight_decay=0.1)
    plain = AdamW(list(policy.model.parameters())[::-1], lr=1e-3, weight_decay=0.1)
    generator = torch.Generator().manual_seed(0)
    for p, q in zip(sharded.parameters(), policy.model.parameters(), strict=True):
        q.grad = torch.randn(q.shape, generator=generator, dtype=q.dtype)
        p.grad = torch.distributed.tensor.distribute_tensor(q.grad, p.device_mesh, p.placements)
    theirs.step()
    plain.step()
    whole = get_optimizer_state_dict(
        sharded, theirs, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    torch.save(whole, tmp_path / "optimizer.pt")
    steps = [
        compute_step(policy, build_batch(), source, max_response_length=MAX_LENGTH)
        for source in (tmp_path / "optimizer.pt", plain)
    ]
    assert [step.matched_by for step in steps] == ["names", "identity"]
    assert relative_error(steps[0].direction, steps[1].direction) < 1e-12
    torch.save(theirs.state_dict(), tmp_path / "optimizer.pt")
    for source in (tmp_path / "optimizer.pt", theirs.state_dict()):
        with pytest.raises(ValueError, match=r"DTensor.*full_state_dict=True"):
            load_optimizer_state(policy, source)
