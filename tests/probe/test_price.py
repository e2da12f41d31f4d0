"""The probe says what a step spends and earns, where it is given rewards."""

import pytest
import torch

from isentrope import EntropyProbe, ProbeOptions, entropy_change
from isentrope.estimators.positions import position_classes
from isentrope.estimators.price import price_of_step
from isentrope.estimators.reward_change import reward_change
from isentrope.sampling.generate import plain_texts
from tests.probe import following
from tests.probe.test_probe import Recorder
from tests.training import runs


def digits(E):
    """A reward that a random policy earns now and then."""
    return [float(sum(int(token) % 3 == 0 for token in r)) for r in E.response_ids]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    patch = pytest.MonkeyPatch()  # the top of a parabola that these few responses do not show
    patch.setattr("isentrope.estimators.reward_change._explain_no_top", lambda *_: None)
    options = ProbeOptions(reward=digits, position_pattern=r"^.", second_order=True)
    probe = Recorder(["1+2=", "5+4="], every=1, size=32, options=options)
    folder = tmp_path_factory.mktemp("run")
    trainer = runs.trainer(folder, probe=probe, steps=2, precision="float64")
    trainer.train()
    yield trainer, probe
    patch.undo()


def test_the_price_of_a_reading_is_that_of_the_step_that_was_taken(made):
    trainer, probe = made
    reading = probe.history[-1]
    policy = probe.policy_before(trainer)
    change = entropy_change(policy, probe.E, probe.direction(), [reading.eta])
    gained = reward_change(change, probe.E.rewards)
    classes = position_classes(probe.E, change.sample.entropies)
    expected = price_of_step(change.sample, reading.eta, classes, probe.E.rewards)
    momentum = reading.components["momentum"].value / reading.first_order.value
    price, first = reading.price, "first token"
    for found, wanted in (
        (price.top, gained.top),
        (price.whole.first_order, expected.whole.first_order),
        (price.whole.reward, expected.whole.reward),
        (price.at[first].first_order, expected.at[first].first_order),
        (price.whole.change, change.points[0].change),
        (price.reward_change, gained.points[0].change),
    ):
        assert found.value == pytest.approx(wanted.value, rel=5e-4)
        assert found.se == pytest.approx(wanted.se, rel=1e-5)
    assert price.momentum.value == pytest.approx(momentum)


def test_the_change_of_reward_is_that_of_weighted_rewards(made):
    """Σ r w / Σ w − mean r, w = π'/π of a response, by the model's own logits."""
    trainer, probe = made
    reading, model = probe.history[-1], trainer.policy.model

    def log_likelihoods(theta):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in theta:
                    parameter.copy_(theta[name])
            return torch.stack([log_likelihood(model, *x) for x in pairs])

    pairs = list(zip(probe.E.prompt_ids, probe.E.response_ids, strict=True))
    w = (log_likelihoods(probe.moved) - log_likelihoods(probe.theta)).exp()
    r = torch.tensor(digits(probe.E)).double()
    expected = float((w * r).sum() / w.sum() - r.mean())
    assert reading.price.reward_change.value == pytest.approx(expected, rel=1e-6)


def log_likelihood(model, prompt, response):
    logits = model(input_ids=torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
    return logits.double().log_softmax(-1).gather(1, response[:, None]).sum()


def test_its_numbers_are_logged_by_class(made):
    flat = made[1].history[-1].to_dict()
    assert {"price/momentum", "price/momentum_se", "price/best_rate"} <= flat.keys()
    for place in ("price", "price/at_first_token", "price/at_high_entropy", "price/at_after"):
        for name in ("first_order", "change", "reward", "reward_for_a_nat"):
            assert {f"{place}/{name}", f"{place}/{name}_se"} <= flat.keys()


def test_without_rewards_there_is_none(tmp_path):
    probe = runs.probe(every=1)
    runs.trainer(tmp_path, probe=probe, steps=1).train()
    assert probe.history[0].price is None
    assert not any(name.startswith("price") for name in probe.history[0].to_dict())


ROWS = [{"prompt": "1+2=", "answer": 3, "level": 1}, {"prompt": "5+4=", "answer": 9, "level": 2}]


def test_a_reward_is_called_as_trl_calls_it_with_the_columns_of_the_held_out_rows(tmp_path):
    calls = []

    def correct(prompts, completions, answer, level, **_):
        calls.append(list(zip(prompts, answer, level, strict=True)))
        return [float(len(set(text))) for text in completions]

    def short(completion_ids, **_):
        return [-float(len(ids)) for ids in completion_ids]

    trainer = following.grpo(tmp_path, 1)
    trainer.args.reward_weights = [1.0, 0.5]
    options = ProbeOptions(reward=[correct, short])
    probe = EntropyProbe(ROWS, every=1, size=8, options=options).attach(trainer)
    drawn = []
    taken = probe._reward.batch_rewards
    probe._reward.batch_rewards = lambda E, texts: drawn.append((E, taken(E, texts))) or drawn[0][1]
    following.run(trainer)
    assert probe.history[0].price is not None
    assert set(calls[0]) <= {(row["prompt"], row["answer"], row["level"]) for row in ROWS}
    E, rewards = drawn[0]
    texts = plain_texts(E, probe._policy)
    lengths = [len(ids) for ids in E.response_ids]
    expected = [len(set(t)) - 0.5 * n for t, n in zip(texts, lengths, strict=True)]
    assert rewards == pytest.approx(expected)


def test_a_reward_that_takes_what_held_out_prompts_do_not_have_is_refused_before_the_run():
    options = ProbeOptions(reward=lambda completions, answer: [0.0 for _ in completions])
    with pytest.raises(ValueError, match="needs 'answer'"):
        EntropyProbe(["1+2="], options=options)
