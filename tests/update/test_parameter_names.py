import pytest
import torch
from torch.optim import AdamW
from transformers import Trainer, TrainingArguments

from isentrope.update.parameter_names import names_of_states
from tests.update.plain import build_policy


def groups_of(optimizer):
    return optimizer.state_dict()["param_groups"]


def trainer_optimizer(policy, folder):
    arguments = TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to="none", weight_decay=0.1
    )
    return Trainer(model=policy.model, args=arguments).create_optimizer()


def plain_groups(*sizes, **options):
    return [{"params": list(range(size)), **options} for size in sizes]


@pytest.mark.parametrize("adaptation", ["lora", "full"])
def test_order_rule_is_that_of_the_hugging_face_trainer(tmp_path, adaptation):
    policy = build_policy(adaptation)
    optimizer = trainer_optimizer(policy, tmp_path)
    by_id = {id(p): name for name, p in policy.model.named_parameters()}
    expected = [by_id[id(p)] for group in optimizer.param_groups for p in group["params"]]
    assert names_of_states(policy, groups_of(optimizer)) == (expected, "order")
    assert (expected == list(policy.names)) == (adaptation == "lora")


def test_one_group_is_the_models_own_order():
    policy = build_policy()
    every = [name for name, _ in policy.model.named_parameters()]
    for names in (list(policy.names), every):
        assert names_of_states(policy, plain_groups(len(names))) == (names, "order")


def test_a_live_optimizer_is_matched_by_identity_in_any_order():
    policy = build_policy()
    backwards = list(policy.model.named_parameters())[::-1]
    optimizer = AdamW([p for _, p in backwards])
    names, source = names_of_states(
        policy, groups_of(optimizer), parameters=optimizer.param_groups[0]["params"]
    )
    assert (names, source) == ([name for name, _ in backwards], "identity")


def test_names_written_by_torch_come_before_the_order_rule():
    policy = build_policy()
    backwards = [(n, p) for n, p in policy.model.named_parameters() if p.requires_grad][::-1]
    names, source = names_of_states(policy, groups_of(AdamW(backwards)))
    assert (names, source) == (list(policy.names)[::-1], "param_names")


def test_the_callers_names_come_first_and_may_lack_the_adapter_infix():
    policy = build_policy()
    bare = [name.replace(".default.", ".") for name in policy.names][::-1]
    expected = list(policy.names)[::-1]
    groups = plain_groups(len(bare) - 3, 3, weight_decay=0.1)
    assert names_of_states(policy, groups, chosen=bare) == (expected, "names")
    by_group = [bare[:-3], bare[-3:]]
    assert names_of_states(policy, groups, sidecar=by_group) == (expected, "sidecar")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda n: n[:-1], r"hold \[28\] parameters, and \[27\]"),
        (lambda n: [*n, n[0]], r"\[28\] .*\[29\] are named"),
        (lambda n: [n[1], *n[1:]], r"lora_B.* is listed twice"),
        (lambda n: [n[0].replace("default", "ref"), *n[1:]], r"lora_A.ref.* is not one of the"),
        (lambda n: [n[:9], n[9:]], r"groups hold \[28\] parameters, and \[9, 19\] are named"),
    ],
)
def test_names_that_do_not_fit_are_refused(change, words):
    policy = build_policy()
    names = list(policy.names)
    with pytest.raises(ValueError, match=words):
        names_of_states(policy, plain_groups(len(names)), chosen=change(names))


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (
            plain_groups(27),
            r"27 parameters .*28.*checkpoint.trainable",
        ),
        (plain_groups(29), r"29 parameters .*28"),
        (plain_groups(28, 1), r"group 1 .*1 parameters"),
        (plain_groups(9, 9, 10), r"3 param groups .*names="),
    ],
)
def test_counts_that_do_not_fit_are_refused(groups, words):
    with pytest.raises(ValueError, match=words):
        names_of_states(build_policy(), groups)


def test_groups_that_are_not_decay_and_no_decay_are_refused():
    with pytest.raises(ValueError, match="decay and no-decay"):
        names_of_states(build_policy("full"), plain_groups(15, 12, weight_decay=0.1))


def test_an_optimizer_of_part_of_theta_or_of_another_model_too_is_refused():
    policy = build_policy()
    own = [p for p in policy.model.parameters() if p.requires_grad]
    stranger = torch.nn.Parameter(torch.zeros(2))
    for parameters, words in (
        (own[1:], r"parameter '.*q_proj.lora_A.*1 of 28 "),
        ([*own, stranger], "Parameter 28 of the optimizer"),
    ):
        groups = groups_of(AdamW(parameters))
        with pytest.raises(ValueError, match=words):
            names_of_states(policy, groups, parameters=parameters)
