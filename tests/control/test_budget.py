"""The entropy budget inside a run: what it leaves alone, replay, resume, refusals."""

import json
import logging
import math
import shutil

import pytest
import torch

import isentrope as ise
from isentrope import BudgetOptions, EntropyBudget, Policy, Rollouts
from isentrope.checkpoint.record.next_update import CONTROL_FILE, read_control, read_next_update
from isentrope.checkpoint.step import with_control
from isentrope.cli.commands import MEASURING
from isentrope.commands.measure import measure
from isentrope.config.io import ConfigError, load_config
from isentrope.control import budget
from isentrope.control.own_rollouts import OwnRollouts
from isentrope.estimators.paired import PairedSteps
from isentrope.system.errors import IsentropeError
from isentrope.update.step import compute_step
from isentrope.verbs.loop import run_verb
from isentrope.verbs.train import resume
from tests.control.examples import NEGATIVE_SCALE
from tests.probe import following
from tests.training import runs

OPTIONS = {"size": 32, "every": 1, "average": 3}
HOLD = {"name": "budget", "target": {"kind": "hold"}, "options": OPTIONS}


def run(folder, name, steps=4, save_every=1, **sections):
    """A run of `isentrope train` in `folder/name`, the same base for all."""
    training = {"steps": steps, "save_every": save_every, "micro_batch": 16}
    output = {"directory": str(folder / name)}
    return runs.trained(folder, training=training, output=output, **sections)


def checkpoint(folder, step):
    return folder / "training_state" / f"step_{step}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A controlled run, probed at every step, and the same run without control."""
    made = tmp_path_factory.mktemp("budget")
    probe = {"every": 1, "size": 16}
    run(made, "held", control=HOLD, entropy_probe=probe)
    run(made, "plain", steps=2, entropy_probe=probe)
    return made


def run_on_schedule(folder, name, steps, every):
    """A run towards a target, at first tokens, whose effects are read every so many steps."""
    options = OPTIONS | {"every": every, "where": "first token"}
    target = {"kind": "linear", "to": 2.0, "steps": 9}
    return run(folder, name, steps=steps, control=HOLD | {"target": target, "options": options})


@pytest.fixture(scope="module")
def scheduled(tmp_path_factory):
    """Five of its steps; effects are read at steps 1 (of no use), 2 and 4."""
    return run_on_schedule(tmp_path_factory.mktemp("schedule"), "whole", 5, 3)


def test_the_step_taken_is_the_optimizers_and_the_correction_that_was_recorded(folder):
    for step in (1, 3):
        here, there = (checkpoint(folder / "held", step + k) for k in (0, 1))
        policy, moved = (Policy.from_checkpoint(f, precision="float64") for f in (here, there))
        U, update = read_next_update(here)
        plain = compute_step(
            policy, U, here, objective="recorded", max_grad_norm=update["max_grad_norm"]
        )
        control = read_control(here)
        rate = update["learning_rate"]
        taken = {n: (moved.theta[n] - p) / rate for n, p in policy.theta.items()}
        assert runs.relative(plain.corrected(control).direction, taken) < 1e-5
        assert runs.relative(plain.direction, taken) > 1e-2


def test_measure_has_the_correction_as_a_part_of_the_step_on_trainings_own_batch(folder):
    here = checkpoint(folder / "held", 2)
    policy = Policy.from_checkpoint(here, precision="float64")
    U, _ = read_next_update(here)
    plain = compute_step(policy, U, here, objective="recorded", max_grad_norm=0.03)
    step = with_control(ise.Checkpoint(here), policy, U, plain)
    assert "Attributions" in step.warnings[-1]
    assert set(step.components) == {"momentum", "decay", "gradient", "control"}
    assert runs.relative(step.components["control"], read_control(here)) == 0
    step = with_control(ise.Checkpoint(here), policy, U.select([0]), plain)
    assert "U is another batch" in step.warnings[-1]
    assert step.direction is plain.direction
    unchanged = checkpoint(folder / "plain", 1)
    assert with_control(ise.Checkpoint(unchanged), policy, U, plain) is plain


def test_a_checkpoint_is_tried_and_measured_on_fresh_and_on_its_own_batch(folder, tmp_path):
    here = checkpoint(folder / "held", 2)
    batch = {"dataset_name": "prompts", "dataset_path": str(folder / "prompts.jsonl"), "B_E": 8}
    batch |= {"B_U": 2, "save_batches": True, "allow_overlap": True}
    given = {
        "checkpoint": {"checkpoint_path": str(here)},
        "batch_config": batch,
        "estimator": {"eta_list": [1e-3], "order": 1},
        "trial": {"controls": [NEGATIVE_SCALE], "strengths": [1.0], "size": 32},
        "output": {"directory": str(tmp_path / "fresh")},
    }
    (fresh,) = measure(load_config(given)).results
    assert any("objective dr_grpo without the token weights" in x for x in fresh.warnings)
    batch["U_file"] = str(here / "next_update" / "rollouts.parquet")
    given["estimator"]["objective"] = "dr_grpo"
    given["output"] = {"directory": str(tmp_path / "own")}
    done = run_verb(MEASURING["try"], load_config(given))
    (results,) = done.results
    # the correction is no part of the step that controls are compared with
    policy = Policy.from_checkpoint(here, precision="float64")
    U, update = read_next_update(here)
    plain = compute_step(
        policy, U, here, objective="recorded", max_grad_norm=update["max_grad_norm"]
    )
    E = Rollouts.load(next(iter(done.measurements.values())) / "E.parquet")
    eta = results.eta
    paired = PairedSteps(policy, E, eta)
    paired.add("plain", plain.direction)
    expected = paired.changes().changes["plain"].entropy.value
    assert results.vanilla["step"]["delta_h"].value == pytest.approx(expected, rel=1e-4)


def test_batch_gradient_and_optimizer_state_of_the_first_step_are_those_without_control(folder):
    held, plain = (runs.lines(folder / name)[0] for name in ("held", "plain"))
    for key in ("loss", "reward", "gradient_norm", "probe/momentum", "probe/gradient"):
        assert held[key] == plain[key]
    states = [
        torch.load(checkpoint(folder / n, 1) / "optimizer.pt")["state"] for n in ("held", "plain")
    ]
    for a, b in zip(*(s.values() for s in states), strict=True):
        assert all(torch.equal(a[key], b[key]) for key in a)
    parameters = [runs.parameters(folder / n, 1) for n in ("held", "plain")]
    assert runs.relative(*parameters) == 0  # P of one gradient alone: no correction yet
    assert held["control/first_step"] == 1
    parameters = [runs.parameters(folder / n, 2) for n in ("held", "plain")]
    assert runs.relative(*parameters) > 1e-3


def test_the_probe_has_the_correction_as_a_part_of_the_step(folder):
    sizes = []
    for line in runs.lines(folder / "held")[1:]:
        names = ("momentum", "decay", "gradient", "control")
        parts = [line[f"probe/{name}"] for name in names]
        assert line["probe/first_order"] == pytest.approx(sum(parts), rel=1e-6)
        scale = 1e-2 * line["control/lambda"]  # η λ
        error = math.hypot(line["probe/control_se"], scale * line["control/gain_se"])
        expected = scale * line["control/gain"]  # of other E
        sizes.append((line["probe/control"], expected))
        assert abs(line["probe/control"] - expected) < 6 * error
    measured, expected = map(sum, zip(*sizes, strict=True))
    assert 1 / 3 < measured / expected < 3
    assert "probe/control" not in runs.lines(folder / "plain")[0]


def test_every_number_is_in_the_log_and_no_time_among_them(folder):
    first, *later = runs.lines(folder / "held")
    assert (first["control/lambda"], first["control/no_correction"]) == (0, 1)
    for line in later:
        assert line["control/lambda"] != 0
        assert line["control/no_correction"] == 0
        wanted = line["control/output"]
        assert line["control/asked"] == pytest.approx(wanted)
        after = line["control/predicted"] + 1e-2 * line["control/lambda"] * line["control/gain"]
        assert after == pytest.approx(wanted, rel=1e-6, abs=1e-9)
        assert not [key for key in line if "seconds" in key]
    text = (folder / "held" / "logs" / "timing.jsonl").read_text().splitlines()
    assert all(json.loads(line)["control/seconds"] > 0 for line in text)


def test_between_readings_their_effects_serve_and_the_level_is_new(scheduled):
    lines = runs.lines(scheduled)
    gains = [line["control/gain"] for line in lines]
    assert len(set(gains[1:])) == 2
    assert gains[1] == gains[2]
    assert gains[3] == gains[4]
    assert len({line["control/entropy_drawn"] for line in lines}) == 5


@pytest.mark.parametrize(("steps", "every"), [(5, 3), pytest.param(4, 1, marks=pytest.mark.slow)])
def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(scheduled, tmp_path, steps, every):
    whole = scheduled if every == 3 else run_on_schedule(tmp_path, "whole", steps, every)
    parts = run_on_schedule(whole.parent, "parts", 2, every)
    resume(parts, [f"training.steps={steps}"])
    assert all(line["control/lambda"] for line in runs.lines(whole)[2:])
    names = ("adapter_model.safetensors", "step_control.safetensors", "isentrope_state.json")
    for file in (*(f"training_state/step_{steps}/{name}" for name in names), "logs/metrics.jsonl"):
        assert (whole / file).read_bytes() == (parts / file).read_bytes()


def test_a_checkpoint_without_the_controls_state_is_not_resumed(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder / "held", copy)
    (checkpoint(copy, 4) / "step_control.safetensors").unlink()
    with pytest.raises(ValueError, match=r"step_control\.safetensors"):
        resume(copy, ["training.steps=6"])


def test_a_recorded_step_that_lost_its_correction_is_not_replayed(folder, tmp_path):
    copy = tmp_path / "step_1"
    shutil.copytree(checkpoint(folder / "held", 1), copy)
    (copy / "next_update" / CONTROL_FILE).unlink()
    with pytest.raises(ValueError, match="control"):
        read_control(copy)


def test_a_schedule_asks_for_its_own_change_from_the_first_step_on(scheduled):
    line, *_ = runs.lines(scheduled)
    first = (2.0 - line["control/entropy"]) / 9
    assert line["control/asked"] == pytest.approx(first + line["control/output"])


def test_a_class_without_a_position_is_refused_or_named_once(tmp_path, caplog, monkeypatch):
    control = HOLD | {"options": OPTIONS | {"where": "/ZZZ/"}}
    with pytest.raises(IsentropeError, match=r"No token of the first step stands at '/ZZZ/'"):
        run(tmp_path, "nowhere", steps=2, control=control)
    found = budget.named_positions
    monkeypatch.setattr(
        budget,
        "named_positions",
        lambda drawn, *rest: found(drawn, "first token", *rest[1:]) & (next(steps) < 2),
    )
    steps = iter(range(9))
    with caplog.at_level(logging.WARNING, logger="isentrope"):
        made = run(tmp_path, "later", steps=4, control=control)
    lines = runs.lines(made)
    assert [line.get("control/no_position") for line in lines] == [None, None, 1, 1]
    assert [line["control/lambda"] for line in lines[2:]] == [0, 0]
    assert sum("no_position" in r.message for r in caplog.records) == 1
    assert read_control(checkpoint(made, 3)) is None


def test_what_was_drawn_holds_rejected_groups_too_and_weighs_them_nothing(tmp_path):
    made = runs.trainer(tmp_path, steps=1)
    control = EntropyBudget(options=BudgetOptions(size=16)).attach(made)
    taken, take = [], control._rollouts.take
    control._rollouts.take = lambda: taken.append(take()) or taken[0]
    made.train()
    (drawn,), report = taken, made.batch.report
    assert len(drawn) == report.drawn * runs.SIZE
    weights = drawn.padded("token_weights").abs().sum(1)
    assert int((weights > 0).sum()) <= (report.drawn - report.rejected) * runs.SIZE
    assert float(torch.cat(drawn.sampler_entropies).mean()) == pytest.approx(
        report.entropy_drawn, rel=1e-5
    )
    assert bool((drawn.prompt_index.diff() >= 0).all())


def refused(folder, words, **sections):
    with pytest.raises(ValueError, match=words):
        run(folder, "refused", **sections)


def test_what_cannot_be_controlled_is_refused_by_name(tmp_path):
    whole = {"lora_rank": 0, "dtype": "bfloat16", "lora_alpha": 4}
    base = runs.settings(tmp_path)["model"]["path"]
    refused(tmp_path, "is bfloat16, which rounds", control=HOLD, model=whole | {"path": base})
    for control, words in (
        (HOLD | {"options": {"sizes": 3}}, "no option 'sizes'"),
        (HOLD | {"options": {"where": ""}}, "where: .*at least 1"),
        (HOLD | {"strength": -1.0}, "strength: .*greater than 0"),
    ):
        with pytest.raises(ConfigError, match=words):
            run(tmp_path, "refused", control=control)


def test_sharded_trainers_and_skipped_steps_are_refused(tmp_path):
    made = runs.trainer(tmp_path)
    control = EntropyBudget(options=BudgetOptions(size=16))
    made.is_fsdp_enabled = True
    with pytest.raises(ValueError, match="FSDP"):
        control.attach(made)
    made.is_fsdp_enabled, made.args.fp16 = False, True
    with pytest.raises(ValueError, match=r"trainer\.fp16=false"):
        control.attach(made)


def test_the_log_of_a_trainer_of_ones_own_has_the_controls_numbers(tmp_path):
    made = following.grpo(tmp_path, steps=2)
    control = EntropyBudget(options=BudgetOptions(size=16)).attach(made)
    made.train()
    steps = [line for line in made.state.log_history if "loss" in line]
    assert len(steps) == 2
    assert all(line["control/entropy"] > 0 for line in steps)
    latest = control.latest()
    assert latest == {name: steps[-1][name] for name in latest}
    assert not any("control/entropy" in x for x in made.state.log_history if "loss" not in x)


def test_a_gradient_that_is_not_finite_and_too_few_prompts_are_named_and_not_corrected(
    tmp_path, caplog
):
    made = runs.trainer(tmp_path)
    control = EntropyBudget(options=BudgetOptions(size=16)).attach(made)
    rollouts = ise.sample(made.policy, ["1+1=", "2+1="], 2, 2, max_new_tokens=2, seed=0)
    weights = [torch.zeros(len(x)) for x in rollouts.response_ids]
    control._rollouts.take = lambda: rollouts.with_columns(token_weights=weights)
    for parameter in made.model.parameters():
        parameter.grad = torch.full_like(parameter, math.inf) if parameter.requires_grad else None
    made.create_optimizer_and_scheduler(4)
    before = runs.theta(made)
    common = {"model": made.model, "optimizer": made.optimizer}
    for reason in ("not_finite", "few_prompts"):
        control.on_pre_optimizer_step(
            made.args, made.state, made.control, processing_class=made.processing_class, **common
        )
        control.on_optimizer_step(made.args, made.state, made.control, **common)
        assert control.latest()["control/no_correction"] == control.latest()[f"control/{reason}"]
        assert control.latest()[f"control/{reason}"] == 1
        assert control.component is None
        assert all(torch.equal(before[n], p) for n, p in runs.theta(made).items())
        for parameter in made.model.parameters():
            parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    assert "fewer than 4 different prompts" in caplog.text


def test_a_trainer_whose_rollouts_are_not_its_steps_own_is_refused(tmp_path):
    made = following.grpo(tmp_path, steps=2)
    for field, value, words in (
        ("num_iterations", 2, "num_iterations=1"),
        ("steps_per_generation", 4, "serves 4 micro-batches where a step has 2"),
        ("mask_truncated_completions", True, "mask_truncated_completions=false"),
        ("generation_batch_size", 8, "2 prompts"),
    ):
        usual = getattr(made.args, field)
        setattr(made.args, field, value)
        with pytest.raises(ValueError, match=words):
            OwnRollouts(made)
        setattr(made.args, field, usual)
    with pytest.raises(ValueError, match="SFTTrainer"):
        OwnRollouts(following.sft(tmp_path / "sft"))


def test_a_filtered_sampler_is_refused_and_a_step_without_advantages_is_taken(tmp_path):
    made = following.grpo(tmp_path, steps=3)
    made.reward_funcs = [lambda completions, **_: [1.0] * len(completions)]
    control = EntropyBudget(options=BudgetOptions(size=16)).attach(made)
    made.train()
    assert control.latest()["control/predicted"] == pytest.approx(0, abs=1e-6)
    filtered = following.grpo(tmp_path, steps=2, top_p=0.5)
    with pytest.raises(ValueError, match="top_p"):
        EntropyBudget().attach(filtered)


def test_a_resumed_trainer_of_ones_own_equals_an_uninterrupted_one_to_the_bit(
    tmp_path, caplog, monkeypatch
):
    # every step is corrected
    monkeypatch.setattr("isentrope.control.correction._find_obstacle", lambda *_: None)

    def trained(name, steps, **options):
        folder = tmp_path / name
        made = following.grpo(folder, steps=steps, save_strategy="steps", save_steps=1)
        control = EntropyBudget(options=BudgetOptions(size=16, every=2)).attach(made)
        made.train(**options)
        return made, control, folder / "out"

    whole, through, _ = trained("whole", 4)
    _, _, out = trained("parts", 3)
    resumed, control, _ = trained("parts", 4, resume_from_checkpoint=str(out / "checkpoint-3"))
    assert through.component is not None
    assert control.latest() == through.latest()
    assert control.state_dict() == through.state_dict()
    pairs = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    assert all(torch.equal(p, q) for p, q in pairs)
    (out / "checkpoint-3" / "entropy_budget.json").write_text('{"feedback": 3}')
    with pytest.raises(ValueError, match=r"entropy_budget\.json"):
        trained("parts", 4, resume_from_checkpoint=str(out / "checkpoint-3"))
    (out / "checkpoint-3" / "entropy_budget.json").unlink()
    trained("parts", 4, resume_from_checkpoint=str(out / "checkpoint-3"))
    assert "was saved without an entropy budget" in caplog.text
