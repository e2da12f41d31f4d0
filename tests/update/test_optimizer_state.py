import copy
import json
import pickle

import pytest
import torch
from torch.optim import SGD, AdamW

from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.step import compute_step
from tests.update.plain import MAX_LENGTH, build_batch, build_policy, train


def trainable(policy):
    return [p for p in policy.model.parameters() if p.requires_grad]


@pytest.fixture(scope="module")
def trained():
    """A policy and its optimizer; nothing changes them."""
    policy = build_policy()
    return policy, train(policy, AdamW(trainable(policy), lr=1e-3, weight_decay=0.1))


@pytest.fixture
def saved(trained, tmp_path):
    def write(change=lambda state_dict: None):
        state_dict = copy.deepcopy(trained[1].state_dict())
        change(state_dict)
        torch.save(state_dict, tmp_path / "optimizer.pt")
        return tmp_path / "optimizer.pt"

    return write


def test_object_copy_state_dict_file_and_folder_give_the_same_step(trained, saved):
    policy, optimizer = trained
    of_a_copy = AdamW(trainable(copy.deepcopy(policy)))
    of_a_copy.load_state_dict(optimizer.state_dict())
    sources = [optimizer, of_a_copy, optimizer.state_dict(), saved(), str(saved().parent)]
    steps = [
        compute_step(policy, build_batch(), x, max_response_length=MAX_LENGTH) for x in sources
    ]
    assert [step.matched_by for step in steps] == ["identity"] + ["order"] * 4
    for step in steps[1:]:
        assert all(torch.equal(x, steps[0].direction[n]) for n, x in step.direction.items())


def test_sidecar_puts_another_order_right(tmp_path, trained):
    policy = build_policy()
    backwards = train(policy, AdamW(trainable(policy)[::-1], lr=1e-3, weight_decay=0.1))
    torch.save(backwards.state_dict(), tmp_path / "optimizer.pt")
    with pytest.raises(ValueError, match=r"q_proj.lora_A.* has shape \(3, 16\), but 'exp_avg'"):
        load_optimizer_state(policy, tmp_path)
    (tmp_path / "parameter_names.json").write_text(json.dumps(policy.names[::-1]))
    found, expected = load_optimizer_state(policy, tmp_path), load_optimizer_state(*trained)
    for name in policy.names:
        torch.testing.assert_close(found.moments[name], expected.moments[name])


def test_alphabetical_order_is_refused(trained, saved):
    policy, _ = trained
    order = sorted(range(len(policy.names)), key=lambda i: policy.names[i])

    def shuffle(state_dict):
        state_dict["state"] = {i: state_dict["state"][j] for i, j in enumerate(order)}

    with pytest.raises(ValueError, match="order of the parameters"):
        load_optimizer_state(policy, saved(shuffle))


def test_a_short_precision_state_is_read_in_float64(trained):
    policy, optimizer = trained
    state_dict = copy.deepcopy(optimizer.state_dict())
    for state in state_dict["state"].values():
        state["exp_avg"] = state["exp_avg"].float()
    moments = load_optimizer_state(policy, state_dict).moments[policy.names[0]]
    assert moments["exp_avg"].dtype == torch.float64
    assert moments["step"] == 2.0


def test_frozen_parameters_in_the_optimizer_need_no_state():
    policy = build_policy()
    optimizer = train(policy, AdamW(policy.model.parameters(), lr=1e-3))
    state = load_optimizer_state(policy, optimizer.state_dict())
    assert set(state.moments) == set(policy.names)


def test_a_fresh_optimizer_is_taken_as_object_or_state_dict_but_not_as_file(tmp_path):
    policy = build_policy()
    fresh = AdamW(trainable(policy))
    for given in (fresh, fresh.state_dict()):
        assert "fresh" in load_optimizer_state(policy, given).warnings[0]
    torch.save(fresh.state_dict(), tmp_path / "optimizer.pt")
    with pytest.raises(ValueError, match="empty optimizer state"):
        load_optimizer_state(policy, tmp_path)


def test_sgd_without_momentum_has_no_state_to_miss(tmp_path):
    policy = build_policy()
    torch.save(SGD(trainable(policy), lr=0.1).state_dict(), tmp_path / "optimizer.pt")
    assert load_optimizer_state(policy, tmp_path).warnings == ()


def drop_one(state_dict):
    del state_dict["state"][4]


def drop_key(state_dict):
    del state_dict["state"][2]["exp_avg_sq"]


def drop_last(state_dict):
    last = state_dict["param_groups"][0]["params"].pop()
    del state_dict["state"][last]


def reshape(state_dict):
    state_dict["state"][3]["exp_avg"] = state_dict["state"][3]["exp_avg"].T


def add_key(state_dict):
    state_dict["state"][0]["exp_inf"] = torch.zeros(1)


def add_stranger(state_dict):
    state_dict["state"][99] = state_dict["state"][0]


def two_of_them(state_dict):
    one = {key: state_dict.pop(key) for key in list(state_dict)}
    state_dict.update(actor=one, critic=one)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop_key, r"no 'exp_avg_sq' of parameter '.*k_proj.lora_A"),
        (reshape, r"k_proj.lora_B.* has shape \(8, 3\), but 'exp_avg' .* has \(3, 8\)"),
        (add_key, r"q_proj.lora_A.* 'exp_inf'"),
        (add_stranger, r"parameter 99, .*group"),
        (lambda s: s.update(param_groups=[]), "holds no parameters"),
        (drop_last, r"Param group 0 holds \d+ parameters where the policy has \d+"),
        (lambda s: s.pop("state"), r"got \['param_groups'\]"),
        (two_of_them, r"one level deeper; got \['actor', 'critic'\]"),
        (lambda s: s["param_groups"][0].update(differentiable=1), "is 1, not true or false"),
        (lambda s: s["param_groups"][0].update(betas=(0.9, 1.5)), "not two numbers from 0"),
        (lambda s: s["param_groups"][0].update(betas=(0.9,)), "not two numbers from 0"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(trained, saved, change, words):
    with pytest.raises(ValueError, match=words):
        load_optimizer_state(trained[0], saved(change))


def test_a_state_that_one_parameter_lacks_is_refused_where_the_batch_moves_it(trained, saved):
    file = saved(drop_one)
    state = load_optimizer_state(trained[0], file)
    (name,) = state.untrained
    assert name in state.warnings[0]
    with pytest.raises(ValueError, match=rf"gradient for parameter '{name}'"):
        compute_step(trained[0], build_batch(), file, max_response_length=MAX_LENGTH)


def test_tensors_of_equal_settings_are_one_group(trained, saved):
    state = load_optimizer_state(trained[0], saved(lambda s: None))
    (group,) = state.distinct_groups
    assert group["tensors"] == len(trained[0].theta)
    assert group["lr"] == state.learning_rate


def test_rate_zero_beside_another_rate_is_refused():
    policy = build_policy()
    optimizer = AdamW(trainable(policy), lr=1e-3)
    group = optimizer.param_groups[0]
    rest = group | {"params": group["params"][9:]}
    optimizer.param_groups = [group | {"params": group["params"][:9], "lr": 0.0}, rest]
    with pytest.raises(ValueError, match=r"learning rate 0.* 0.001"):
        load_optimizer_state(policy, optimizer)


def test_a_state_of_what_the_policy_does_not_train_is_refused():
    policy = build_policy("full")
    optimizer = train(policy, AdamW(policy.model.parameters(), lr=1e-3))
    policy.model.get_input_embeddings().requires_grad_(False)
    smaller = type(policy)(policy.model, eos_token_id=1, pad_token_id=0)
    with pytest.raises(ValueError, match=r"'model.embed_tokens.weight'"):
        load_optimizer_state(smaller, optimizer)


def test_a_live_optimizer_of_other_shapes_is_refused():
    policy = build_policy()
    optimizer = SGD([p.detach().clone().requires_grad_() for p in trainable(policy)[::-1]])
    with pytest.raises(ValueError, match="optimizer's parameter"):
        load_optimizer_state(policy, optimizer)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no optimizer state at .*optimizer\.pt"):
        load_optimizer_state(build_policy(), tmp_path)


class Command:
    def __reduce__(self):
        return (print, ("a pickle was run",))


@pytest.mark.parametrize(
    "content",
    [pickle.dumps(Command(), protocol=2), b"", b"some text", b"PK\x03\x04 not a zip"],
    ids=["code", "empty", "text", "broken-zip"],
)
def test_a_file_that_is_not_tensors_is_refused_and_not_run(tmp_path, capsys, content):
    (tmp_path / "optimizer.pt").write_bytes(content)
    with pytest.raises(ValueError, match="tensors and plain values"):
        load_optimizer_state(build_policy(), tmp_path)
    assert "a pickle was run" not in capsys.readouterr().out


@pytest.mark.parametrize("content", ["{not json", '{"a": 1}', "[1, 2]", "3"])
def test_a_sidecar_that_is_not_names_is_refused(trained, saved, content):
    path = saved()
    path.with_name("parameter_names.json").write_text(content)
    with pytest.raises(ValueError, match=r"parameter_names\.json .*(JSON|list)"):
        load_optimizer_state(trained[0], path)
