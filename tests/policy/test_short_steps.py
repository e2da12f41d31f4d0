"""A change of scores that is not that of its derivatives is refused, whatever the rate."""

from types import SimpleNamespace

import pytest

import isentrope as ise
from isentrope.policy import chi_square, short_steps
from isentrope.policy.chi_square import divergent_scores
from isentrope.policy.derivative_guard import DerivativeError
from isentrope.policy.scoring import score_along
from isentrope.policy.short_steps import require_short_steps
from tests import cases

RATES = [1e-9, 1.0, 30.0]


def drawn(policy):
    return ise.sample(policy, [[1, 2], [3]], n=12, max_new_tokens=4, seed=0)


def scaled(factor):
    """The scores of a moved policy with another head."""

    def scores(scorer, *arguments):
        def head(hidden):
            return factor * scorer.head(hidden)

        other = SimpleNamespace(hidden=scorer.hidden, head=head, lm=scorer.lm)
        return divergent_scores(other, *arguments)

    return scores


@pytest.mark.parametrize("eta", RATES)
@pytest.mark.parametrize("kind", ["another head", "half the slope", "no slope"])
def test_a_change_that_is_not_that_of_its_derivatives_is_refused(monkeypatch, kind, eta):
    policy = cases.policy("qwen2")
    E, v = drawn(policy), cases.direction(policy)
    series = list(score_along(policy, E, v, 1))
    if kind == "another head":
        monkeypatch.setattr("isentrope.policy.chi_square.divergent_scores", scaled(1.5))
    else:
        part = 0.5 if kind == "half the slope" else 0.0
        series[1] = short_steps.replace(
            series[1], logprobs=part * series[1].logprobs, entropies=part * series[1].entropies
        )
    (there,) = chi_square.score_moved(policy, E, v, [eta])
    with pytest.raises(DerivativeError, match="Qwen2ForCausalLM"):
        require_short_steps(policy, E, v, series, [eta], [there and there[0]])


@pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", ["gpt2", "mixtral"])
def test_no_rate_raises_an_alarm(name, precision):
    policy = cases.policy(name, precision=precision)
    E, v = drawn(cases.policy(name)), cases.direction(policy)
    for order in (1, 2):
        series = score_along(policy, E, v, order)
        for eta in (1e-30, *RATES):
            (there,) = chi_square.score_moved(policy, E, v, [eta])
            require_short_steps(policy, E, v, series, [eta], [there and there[0]])


def test_no_sequence_is_scored_again_where_the_step_is_short(monkeypatch):
    policy = cases.policy("qwen2")
    E, v = drawn(policy), cases.direction(policy)
    monkeypatch.setattr(short_steps, "score_moved", None)
    ise.entropy_change(policy, E, v, [1e-3, 10.0])
    with pytest.raises(TypeError):
        ise.entropy_change(policy, E, v, [10.0])
