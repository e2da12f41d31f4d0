import pytest
import torch
from torch.optim import SGD, Adam, AdamW, RMSprop

from isentrope.update.optimizer_rules import RULES, choose_rule, rmsprop, state_keys


def groups_of(make, **options):
    return make([torch.nn.Parameter(torch.ones(2))], **options).state_dict()["param_groups"]


def test_adam_without_decay_is_adamw_whatever_its_groups_say():
    groups = groups_of(Adam)
    groups[0].pop("decoupled_weight_decay")
    theta, gradient = torch.randn(2, 3, dtype=torch.float64)
    steps = [RULES[name](theta, gradient, {}, groups[0]) for name in ("adam", "adamw")]
    assert choose_rule(groups) in ("adam", "adamw")
    assert torch.equal(steps[0].preconditioner, steps[1].preconditioner)
    assert not steps[0].decay.any()
    assert not steps[1].decay.any()


def test_undecidable_weight_decay_asks_for_the_rule():
    groups = groups_of(AdamW, weight_decay=0.1)
    groups[0].pop("decoupled_weight_decay")
    with pytest.raises(ValueError, match="rule='adamw' or rule='adam'"):
        choose_rule(groups)
    assert choose_rule(groups, "adam") == "adam"


def test_adam_of_a_library_without_amsgrad_is_followed_where_its_rule_is_given():
    group = {"params": [0], "lr": 1e-4, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0}
    assert choose_rule([group], "adamw") == "adamw"
    with pytest.raises(ValueError, match="of another optimizer"):
        choose_rule([group])


@pytest.mark.parametrize(
    ("make", "options", "rule", "words"),
    [
        (SGD, {}, "adam", "'betas'.*'adam'"),
        (SGD, {}, "sdg", "rule='sdg'.*'sgd'"),
        (Adam, {"weight_decay": 0.1}, "adamw", "has decoupled_weight_decay=False"),
    ],
)
def test_what_cannot_be_followed_exactly_is_refused(make, options, rule, words):
    with pytest.raises(ValueError, match=words):
        choose_rule(groups_of(make, **options), rule)


def test_moments_that_are_not_corrected_are_refused():
    groups = [group | {"bias_correction": False} for group in groups_of(Adam)]
    with pytest.raises(ValueError, match="bias_correction=False"):
        choose_rule(groups)


def test_only_what_a_step_reads_is_asked_of_the_state():
    assert state_keys("sgd", groups_of(SGD)[0]) == ()
    assert state_keys("sgd", groups_of(SGD, momentum=0.9)[0]) == ("momentum_buffer",)
    assert state_keys("rmsprop", groups_of(RMSprop)[0]) == ("square_avg",)


def test_centred_second_moment_of_a_constant_gradient_vanishes():
    gradient = torch.tensor([3.0], dtype=torch.float64)
    state = {"square_avg": gradient**2, "grad_avg": gradient}
    group = groups_of(RMSprop, centered=True, eps=0.5)[0]
    step = rmsprop(torch.zeros(1).double(), gradient, state, group)
    torch.testing.assert_close(step.preconditioner, torch.tensor([2.0]).double())
