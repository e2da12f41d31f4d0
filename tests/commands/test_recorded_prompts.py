"""Where E comes from beside a recorded batch, and that a prompt which comes again counts once."""

import json
import shlex

import pytest
import torch
from transformers import AutoTokenizer

import isentrope as ise
from isentrope.cli.commands import COMMANDS
from tests import command_line
from tests.tiny_checkpoint import PROMPTS, settings, weighted_batch, write_prompts

MEASURING = {verb.name: verb for verb in COMMANDS if hasattr(verb, "analyse")}
SHORT = {"sampling": {"max_new_tokens": 3}}
SMALL = ("sampling.max_new_tokens=3", "estimator.eta_list=[1e-3]")


def call(*words):
    done = command_line.call(*words, *(word for x in SMALL for word in ("--set", x)))
    return done.exit_code, command_line.said(done)


def result_of(folder):
    (place,) = (folder / "measurements").glob("*_step_4")
    return ise.load_result(place)


@pytest.fixture
def one_prompt(recorded):
    """The recorded batch is eight responses to one prompt."""
    U = weighted_batch(AutoTokenizer.from_pretrained(recorded / "step_4"))
    file = recorded / "step_4" / "next_update" / "rollouts.parquet"
    file.unlink()
    ids = U.prompt_ids[0]
    alone = torch.zeros(8, dtype=torch.int64)
    advantages = torch.arange(8) - 3.5  # as the probe records them, without rewards
    columns = {"prompt_ids": [ids] * 8, "prompt_index": alone, "advantages": advantages}
    U.with_columns(**columns).save(file)
    return recorded


@pytest.fixture
def held_out(one_prompt):
    """Beside it are the held-out prompts of the run."""
    write_prompts(one_prompt / "step_4" / "next_update" / "held_out.jsonl", PROMPTS[8:])
    return one_prompt


@pytest.mark.parametrize("name", MEASURING)
def test_a_record_of_one_prompt_is_refused_early_by_the_option_it_needs(name, one_prompt):
    folder = one_prompt / "step_4"
    more = {"control": "clip_cov"} if name == "try" else {}
    for overrides in ([], ["batch_config.B_E=64"]):
        verb = MEASURING[name](config=str(folder), settings=overrides, **more)
        with pytest.raises(ValueError) as refusal:  # noqa: PT011  the sentence says which
            verb.read_configuration()
        assert "responses to 1 prompt, and" in str(refusal.value)
        assert "give --prompts FILE" in str(refusal.value)
    prompts = str(one_prompt / "prompts.jsonl")
    config = MEASURING[name](config=str(folder), prompts=prompts, **more).configuration
    assert config.batch_config.U_file is not None


def test_a_record_of_one_prompt_is_refused_in_python_too(one_prompt):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  the sentence says which
        ise.Checkpoint(one_prompt / "step_4").draw()
    assert "give draw prompts" in str(refusal.value)


def test_a_record_of_one_prompt_is_checked_and_needs_prompts_alone(one_prompt, tmp_path):
    sizes = [word for x in SMALL for word in ("--set", x)]
    done = command_line.call("check", one_prompt / "step_4", *sizes)
    assert done.exit_code == 0, command_line.said(done)
    (line,) = (line for line in done.output.splitlines() if line.startswith("Next: "))
    assert "--reward" not in line
    printed = line.removeprefix("Next: isentrope ").partition(", with ")[0]
    file = str(one_prompt / "prompts.jsonl")
    words = [file if word == "FILE" else word for word in shlex.split(printed)]
    done = command_line.call(*words, "--out", tmp_path / "run")
    assert done.exit_code == 0, command_line.said(done)


def test_the_held_out_prompts_beside_a_record_are_those_of_entropy(held_out, tmp_path):
    code, text = call("measure", held_out / "step_4", "--out", tmp_path / "run")
    assert code == 0, text
    E = result_of(tmp_path / "run").batches.E
    assert (E.sequences, E.prompt_draws) == (256, 256)
    assert E.distinct_prompts == len(PROMPTS[8:])
    reward = f"{held_out / 'rewards.py'}:reward"
    with ise.Checkpoint(held_out / "step_4") as checkpoint:
        drawn, U = checkpoint.draw(E=32, settings=SHORT)
        rewarded, _ = checkpoint.draw(reward=reward, E=32, settings=SHORT)
    assert (len(drawn), drawn.n_prompts, U.n_prompts) == (32, 32, 1)
    assert rewarded.rewards is not None
    assert set(rewarded.references) <= {"1", "2", "3"}


def test_more_of_the_recorded_prompts_than_there_are_count_once(recorded, tmp_path):
    words = ["--set", "batch_config.B_E=64", "--out", tmp_path / "run"]
    code, text = call("measure", recorded / "step_4", *words)
    assert code == 0, text
    result = result_of(tmp_path / "run")
    assert (result.batches.E.sequences, result.batches.E.prompt_draws) == (64, 4)
    assert result.first_order.n == 4
    with ise.Checkpoint(recorded / "step_4") as checkpoint:
        E, _ = checkpoint.draw(settings={"batch_config": {"B_E": 64}} | SHORT)
    assert (len(E), E.n_prompts) == (64, 4)


def test_prompts_that_come_again_in_turn_are_one_group(own, tmp_path):
    write_prompts(own / "prompts.jsonl", PROMPTS[:6])
    by_hand = tmp_path / "E.jsonl"
    lines = [{"prompt": PROMPTS[8 + k % 3], "response": str(k % 2 + 1)} for k in range(12)]
    by_hand.write_text("\n".join(map(json.dumps, lines)))
    cases = {"fixed": {"fixed_prompts": "E", "allow_overlap": True}, "file": {"E_file": by_hand}}
    for name, batch in cases.items():
        sections = settings(own, batch_config=batch | {"B_E": 12})
        content = {part: dict(x) for part, x in sections.items()}
        file = tmp_path / f"{name}.yaml"
        file.write_text(json.dumps(content, default=str))
        code, text = call("measure", file, "--out", tmp_path / name)
        assert code == 0, text
        E = result_of(tmp_path / name).batches.E
        assert (E.sequences, E.prompt_draws) == (12, 6 if name == "fixed" else 3), name


def test_fixed_prompts_of_the_update_batch_that_would_come_again_are_refused(own, tmp_path):
    write_prompts(own / "prompts.jsonl", PROMPTS[:6])
    batch = {"fixed_prompts": True, "allow_overlap": True, "B_U": 7}
    file = tmp_path / "fixed.yaml"
    file.write_text(json.dumps(settings(own, batch_config=batch)))
    code, text = call("measure", file, "--out", tmp_path / "run")
    assert code != 0
    assert "set B_U to 6 or less" in text


def test_a_number_withheld_for_one_prompt_names_the_prompts(recorded, tmp_path):
    U = ise.Rollouts.load(recorded / "step_4" / "next_update" / "rollouts.parquet")
    ids = torch.tensor(AutoTokenizer.from_pretrained(recorded / "step_4")(PROMPTS[9])["input_ids"])
    alone = torch.zeros(8, dtype=torch.int64)
    E = U.with_columns(prompt_ids=[ids] * 8, prompt_index=alone, token_weights=None)
    E.save(tmp_path / "E.parquet")
    words = ["--set", f"batch_config.E_file={tmp_path / 'E.parquet'}", "--out", tmp_path / "run"]
    code, text = call("measure", recorded / "step_4", *words)
    assert code == 0, text
    (said, *_) = result_of(tmp_path / "run").sentences()
    assert "responses to one prompt alone" in said.text
    assert "check says" not in text


def test_a_batch_that_a_verb_cannot_use_is_refused_with_what_to_type(held_out):
    words = [held_out / "step_4", "--reward", f"{held_out / 'rewards.py'}:reward"]
    for name, control in {"noise": [], "try": ["clip_cov"]}.items():
        code, text = call(name, *control, *words, "--out", held_out / name)
        assert code != 0
        for option in ("--prompts FILE", "--reward FILE.py:NAME", "batch_config.B_U="):
            assert option in text, text
