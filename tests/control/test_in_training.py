"""A control in training does what the same control does offline, however the batch is cut."""

import copy
import math
import statistics
from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import TrainerCallback

from isentrope import Prompt, Target
from isentrope.control import controls
from isentrope.control.base import Tokens
from isentrope.control.feedback import Feedback
from isentrope.control.measured import draw_held_out, kept_mass, token_influence
from isentrope.control.run_control import RunControl
from isentrope.control.trial import controlled_batch
from isentrope.policy.gradient import weighted_gradient
from isentrope.update.objective import sequence_weights
from isentrope.update.step import compute_step
from tests.adapters import save_base_model
from tests.control.examples import CLIP_B, INFLUENCE_CLIP, LP_REG, PASS_AT_K, STARE
from tests.training import runs
from tests.training.conftest import small_policy
from tests.training.test_trainer import replayed

trl = pytest.importorskip("trl")
MORE = {  # what makes a control act on a batch of 32 tokens
    CLIP_B: {"mu": 0.5},
    "clip_cov": {"lower": 0.5},
    INFLUENCE_CLIP: {"share": 0.2, "size": 6},
    LP_REG: {"share": 0.5},
    PASS_AT_K: {"k": 2},
}
STRENGTH = {"clip_cov": 0.2, "bonus": 0.3, "repo_r": 0.3}
CASES = [
    *((name, MORE.get(name, {})) for name in dict.fromkeys((*controls.TOKEN_CONTROLS, *MORE))),
    ("bonus", {"mode": "complete"}),
]
HELD_OUT = [Prompt(f"held/{i}", text=f"{i}+2=") for i in range(6)]
OWN_E = {"prompts": HELD_OUT, "size": 6, "max_new_tokens": runs.LENGTH, "seed": 1}


def run_control(name, options, *, target=None, objective="dr_grpo", max_grad_norm=None, **settings):
    control = controls.build(name, STRENGTH.get(name), options)
    held_out = partial(draw_held_out, **OWN_E)
    usual = {"objective": objective, "max_response_length": runs.LENGTH}
    plain = partial(sequence_weights, **usual, **settings)
    more = {"seed": 1, "max_grad_norm": max_grad_norm, "held_out": held_out}
    return RunControl(control, Feedback(target or Target()), plain, **more)


def trainer(folder, control=None, **options):
    folder.mkdir(exist_ok=True)
    if not (folder / "base").exists():
        save_base_model(small_policy(spread=0.2), folder / "base")
    return runs.trainer(folder, control=control, **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A trainer in float64, of which single steps are taken."""
    here = trainer(tmp_path_factory.mktemp("steps"), precision="float64")
    trained = [p for p in here.model.parameters() if p.requires_grad]
    here.optimizer = torch.optim.AdamW(trained, lr=1e-3)
    for p in trained:  # so that P is not that of a first step
        p.grad = torch.ones_like(p)
    here.optimizer.step()
    batch = here.batches.draw(here.policy, 1, here._respond)
    here.batches.draw = lambda *_: batch  # one batch for all
    return here


def one_step(made, control, parts=2):
    """(update batch, record, gradient of −loss) of a step in so many micro-batches."""
    from trl.trainer.utils import split_tensor_dict

    made.model.train()
    made.model.zero_grad()
    made.run_control, made.current_gradient_accumulation_steps = control, parts
    batch = made._generate_and_score_completions([])
    for inputs in split_tensor_dict(batch, parts):
        made._compute_loss(made.model, inputs).backward()
    U = made.batch.rollouts
    record = made.recorder.collect(U.lengths.tolist())
    return (
        U,
        record,
        {n: -made.policy.model.get_parameter(n).grad for n in made.policy.theta},
    )


def offline(policy, U, control, optimizer, step, max_grad_norm=None, objective="dr_grpo"):
    """(batch, what the control makes of it), from the batch and the checkpoint alone."""
    tokens = Tokens.of(U, sequence_weights(U, objective, runs.LENGTH), step=step, seed=1)
    columns = {}
    if control.needs == "kept_mass":
        columns["kept_mass"] = kept_mass(policy, U, control.min_p)
    if control.needs == "influence":
        E = draw_held_out(policy, step, **OWN_E)
        plain = U.with_columns(token_weights=U.ragged(tokens.weights))
        how = {"objective": "recorded", "max_grad_norm": max_grad_norm}
        P = compute_step(policy, plain, optimizer, **how).preconditioner
        columns["influence"] = token_influence(policy, E, U, tokens.weights, P)
    tokens = Tokens(**(vars(tokens) | columns))
    return tokens, control.rewrite(tokens, control.strength)


class Seen(TrainerCallback):
    """θ and the optimizer's state before the last step, and θ after it."""

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.optimizer = copy.deepcopy(kwargs["optimizer"].state_dict())
        self.before = self._theta(kwargs["model"])

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.after = self._theta(kwargs["model"])

    def _theta(self, model):
        return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}


def flat(rows):
    return torch.cat(list(rows))


def close(rows, expected):
    """Recorded rows are those of a padded column, to the rounding of TRL's float32."""
    wanted = flat(x[: len(row)] for x, row in zip(expected, rows, strict=True))
    atol = 1e-6 * float(wanted.abs().max())
    torch.testing.assert_close(flat(rows), wanted, rtol=1e-6, atol=atol)


def require_same(made, U, recorded, expected, gradient):
    """The weights recorded are those expected, and the gradient is theirs."""
    close(recorded.weights, expected.weights)
    if expected.entropy_weights is None:
        assert recorded.entropy_weights is None
    else:
        close(recorded.entropy_weights, expected.entropy_weights)
    whole = weighted_gradient(made.policy, U, expected.weights, expected.entropy_weights)
    assert runs.relative(gradient, whole) < 1e-6


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_step_in_training_is_the_step_offline(made, name, options):
    control = run_control(name, options)
    U, recorded, gradient = one_step(made, control)
    made.model.eval()
    rule = controls.build(name, STRENGTH.get(name), options)
    tokens, expected = offline(made.policy, U, rule, made.optimizer, 1)
    if name != PASS_AT_K and expected.entropy_weights is None:
        assert not torch.equal(expected.weights, tokens.weights)
    require_same(made, U, recorded, expected, gradient)


LOSSES = ("dr_grpo", "grpo", "dapo", "cispo", "sapo", "luspo")


@pytest.mark.parametrize(
    ("objective", "name", "options"),
    [
        *((loss, STARE, {"share": 0.3}) for loss in LOSSES),
        *((loss, "bonus", {"mode": "complete"}) for loss in ("grpo", "luspo")),
    ],
)
def test_every_loss_takes_the_weights(made, objective, name, options):
    control = run_control(name, options, objective=objective, clip_high=0.2)
    plain = made.loss_type, made.args.steps_per_generation, made.epsilon_high
    made.loss_type, made.args.steps_per_generation, made.epsilon_high = objective, 2, 0.2
    try:
        U, recorded, gradient = one_step(made, control)
    finally:
        made.loss_type, made.args.steps_per_generation, made.epsilon_high = plain
    made.model.eval()
    weights = sequence_weights(U, objective, runs.LENGTH, clip_high=0.2)
    tokens = Tokens.of(U, weights, step=1, seed=1)
    expected = control.rule.rewrite(tokens, control.strength)
    require_same(made, U, recorded, expected, gradient)


READS = [CLIP_B, LP_REG, INFLUENCE_CLIP, PASS_AT_K]
"""A control by what it reads: its batch, kept mass, influence, the rewards of a group."""


@pytest.mark.parametrize(
    ("name", "options"), [*((x, MORE[x]) for x in READS), ("bonus", {"mode": "complete"})]
)
def test_micro_batches_change_nothing(made, name, options):
    found = [one_step(made, run_control(name, options), k) for k in (1, 2, 4)]
    for _, recorded, gradient in found[1:]:
        first = found[0][1]
        for here, there in ((recorded.weights, first.weights), *entropic(recorded, first)):
            torch.testing.assert_close(flat(here), flat(there), rtol=1e-6, atol=1e-9)
        assert runs.relative(gradient, found[0][2]) < 1e-6


def entropic(*records):
    """Both recorded columns of entropies, where the control has them."""
    columns = [record.entropy_weights for record in records]
    return [] if columns[0] is None else [columns]


def test_a_strength_of_0_is_training_without_a_control_to_the_bit(made):
    _, plain, gradient = one_step(made, None)
    control = run_control("repo_r", {})
    control.strength = 0.0
    _, recorded, again = one_step(made, control)
    assert torch.equal(flat(recorded.weights), flat(plain.weights))
    assert all(torch.equal(gradient[n], again[n]) for n in gradient)


def test_kl_cov_adds_its_term_where_ratios_are_not_1(made):
    control = run_control("kl_cov", {"share": 0.1})
    made.model.train()
    made.run_control, made.current_gradient_accumulation_steps = control, 1
    inputs = made._generate_and_score_completions([])
    U = made.batch.rollouts
    assert inputs["advantages"].dim() == 1
    sampler = inputs["sampling_per_token_logps"].double()
    signs = torch.randn(sampler.shape, generator=torch.Generator().manual_seed(3)).sign()
    inputs["old_per_token_logps"] = sampler - 0.01 * signs  # the policy has moved by ± 0.01
    made._compute_loss(made.model, inputs).backward()
    recorded = flat(made.recorder.collect(U.lengths.tolist()).weights)
    tokens = Tokens.of(U, sequence_weights(U, "dr_grpo", runs.LENGTH), step=1)
    A, s = tokens.token_advantages, tokens.logprobs
    cov = ((A - A[U.mask].mean()) * (s - s[U.mask].mean()))[U.mask]
    held = cov >= cov.sort(descending=True).values[int(0.1 * len(cov)) - 1]
    ratio = (0.01 * signs.double()).exp()[:, : U.mask.shape[1]]
    expected = (tokens.weights * ratio)[U.mask]
    w = tokens.sequence_weights[:, None].expand_as(s)[U.mask]
    expected -= held * w * signs[:, : U.mask.shape[1]].double()[U.mask]
    torch.testing.assert_close(recorded, expected, rtol=1e-5, atol=1e-8)


def test_kl_cov_chooses_by_advantages_without_the_normaliser(made, monkeypatch):
    control = run_control("kl_cov", {"share": 0.1}, objective="dr_grpo_longest")
    factors = torch.tensor([1.0, 40.0, 3.0, 9.0]).repeat_interleave(runs.SIZE)
    monkeypatch.setattr(made, "options", replace(made.options, longest_normaliser=True))
    monkeypatch.setattr(made, "run_control", control)
    inputs = made._generate_and_score_completions([])
    inputs["advantages"] = inputs["advantages"] * factors
    U = made.batch.rollouts
    tokens = Tokens.of(U, sequence_weights(U, "dr_grpo_longest", runs.LENGTH), step=1)
    s, mask = inputs["sampling_per_token_logps"], inputs["completion_mask"].bool()
    inputs["old_per_token_logps"] = s - torch.arange(1.0, s.numel() + 1).view_as(s)
    found = control.loss_term(inputs, s, s)
    A, w = tokens.advantages, tokens.sequence_weights
    rows = [(i, k) for i in range(len(s)) for k in range(s.shape[1]) if mask[i, k]]
    mean_A = statistics.fmean(float(A[i]) for i, _ in rows)
    mean_s = statistics.fmean(float(s[p]) for p in rows)
    cov = {p: (float(A[p[0]]) - mean_A) * (float(s[p]) - mean_s) for p in rows}
    held = sorted(rows, key=lambda p: -cov[p])[: math.floor(0.1 * len(rows))]
    expected = sum(float(w[i]) * (i * s.shape[1] + k + 1) for i, k in held)
    assert float(found) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (CLIP_B, {"mu": 0.5}),
        ("bonus", {"mode": "complete"}),
        (INFLUENCE_CLIP, {"share": 0.2, "size": 6}),
    ],
)
def test_the_parameters_move_as_the_offline_step_says(tmp_path, name, options):
    control = run_control(name, options, max_grad_norm=0.03)
    made = trainer(tmp_path, control, steps=2, precision="float64", save_strategy="no")
    seen = Seen()
    made.add_callback(seen)
    made.train()
    policy = made.policy
    with torch.no_grad():
        for n, p in policy.theta.items():
            p.copy_(seen.before[n])
    policy.model.eval()
    rule = controls.build(name, STRENGTH.get(name), options)
    U = made.batch.rollouts
    new = offline(policy, U, rule, seen.optimizer, 2, max_grad_norm=0.03)[1]
    step = compute_step(
        *(policy, controlled_batch(U, new), seen.optimizer),
        objective="recorded",
        max_grad_norm=0.03,
    )
    taken = {n: (seen.after[n] - p) / step.learning_rate for n, p in seen.before.items()}
    # TRL's log-probabilities are in float32: undivided by P, a gradient near 0 magnifies that
    P = step.preconditioner
    found, expected = ({n: x / P[n] for n, x in v.items()} for v in (step.direction, taken))
    assert runs.relative(found, expected) < 5e-7
    own = control.latest().get("control/tokens")
    assert own is None if name != INFLUENCE_CLIP else 6 <= own <= 6 * runs.LENGTH


@pytest.mark.parametrize(
    ("name", "options"), [("bonus", {"mode": "complete"}), ("kl_cov", {"share": 0.2})]
)
def test_a_step_that_uses_its_batch_again_replays_under_control(tmp_path, name, options):
    trainer(tmp_path, run_control(name, options), steps=3, num_iterations=2).train()
    moved = [line["policy_ratio/log_max"] for line in runs.lines(tmp_path)]
    assert moved[0] < 1e-4 < moved[1]
    assert runs.relative(*replayed(tmp_path, 1)) < 1e-4


def test_a_resumed_run_under_control_equals_an_uninterrupted_one_to_the_bit(tmp_path):
    def begin(folder, steps=runs.STEPS):
        options, target = {"mode": "complete"}, Target(kind="linear", to=0.5, steps=10)
        control = run_control("bonus", options, target=target)
        return trainer(folder, control, steps=steps)

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    begin(whole).train()
    begin(parts, steps=2).train()
    again = begin(parts)
    checkpoint = again.files.latest()
    again.files.rewind(2)
    again.restore(checkpoint)
    again.train(resume_from_checkpoint=str(checkpoint))
    names = ("adapter_model.safetensors", "optimizer.pt", "isentrope_state.json")
    for name in (*(f"training_state/step_4/{n}" for n in names), "logs/metrics.jsonl"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()
    lines = runs.lines(whole)
    assert len({line["control/strength"] for line in lines}) == 4
    assert all(line["control/entropy"] == line["entropy_drawn"] for line in lines)
    timing = (whole / "logs" / "timing.jsonl").read_text()
    assert timing.count("control/seconds") == 4


def test_a_folder_without_control_is_resumed_without_and_refused_with(tmp_path):
    trainer(tmp_path, steps=1).train()
    checkpoint = tmp_path / "training_state" / "step_1"
    trainer(tmp_path).restore(checkpoint)
    with pytest.raises(ValueError, match=r"noise_scale\.enabled and control"):
        trainer(tmp_path, run_control(STARE, {})).restore(checkpoint)


def test_an_optimizer_that_influence_cannot_follow_is_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match=r"'influence' .*optimizer Adagrad"):
        trainer(tmp_path, run_control(INFLUENCE_CLIP, {}), optim="adagrad")
    trainer(tmp_path, run_control(STARE, {}), optim="adagrad")


def test_tokens_without_the_log_probability_that_they_were_drawn_with_are_refused(
    made, monkeypatch
):
    drawn = [[3, 1], [4]], [[0.0, None], [0.0]]
    monkeypatch.setattr(trl.GRPOTrainer, "_generate_single_turn", lambda *_: drawn)
    monkeypatch.setattr(made, "use_vllm", True)
    with pytest.raises(RuntimeError) as refusal:
        made._respond([torch.tensor([5, 6])] * 2, torch.zeros(2, 3))
    assert "no log-probability for 1 of 3 tokens" in str(refusal.value)


def test_a_sampler_without_entropies_is_followed_by_a_scoring_pass(made, monkeypatch):
    ids = [torch.tensor([5, 6, 7])] * 2
    drawn = [[3, 1], [4, 5, 6]], [[0.0] * 2, [0.0] * 3]
    monkeypatch.setattr(trl.GRPOTrainer, "_generate_single_turn", lambda *_: drawn)
    monkeypatch.setattr(made, "use_vllm", True)
    made.run_control = run_control("repo_r", {})
    made.model.train()
    found = made._respond(ids, torch.zeros(2, 3)).sampler_entropies
    assert made.model.training
    made.model.eval()
    logits = made.policy.model(torch.tensor([[5, 6, 7, 4, 5]])).logits[0, 2:]
    expected = torch.distributions.Categorical(logits=logits.double()).entropy()
    torch.testing.assert_close(found[1], expected.detach(), rtol=1e-5, atol=1e-7)
    assert [len(x) for x in found] == [2, 3]
    made.run_control = None
    assert made._respond(ids, torch.zeros(2, 3)).sampler_entropies is None
