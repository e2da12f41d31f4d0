"""A checkpoint folder is enough: what it is measured with comes from its files and two options."""

import json
import shlex
import shutil

import pyarrow as pa
import pytest
import torch
import trl
import yaml
from pyarrow.parquet import write_table
from transformers import TrainingArguments

import isentrope as ise
from isentrope.cli.commands import COMMANDS
from tests import command_line
from tests.tiny_checkpoint import PROMPTS, REWARD, write_prompts

MEASURING = {verb.name: verb for verb in COMMANDS if hasattr(verb, "analyse")}
HALVES = {"test_share": 0.5}
BY_REFERENCE = ["prompts"]
SMALL = {
    "batch_config.B_E": 64,
    "batch_config.B_U": 3,
    "batch_config.G": 4,
    "sampling.max_new_tokens": 3,
    "estimator.eta_list": "[1e-3]",
    "detailed_logging.enabled": "false",
}


def call(*words):
    done = command_line.call(*words)
    return done.exit_code, command_line.said(done), done.output


def sets(**more):
    small = {**SMALL, **{key.replace("__", "."): value for key, value in more.items()}}
    return [word for key, value in small.items() for word in ("--set", f"{key}={value}")]


def given(folder):
    return ["--prompts", folder / "prompts.jsonl", "--reward", f"{folder / 'rewards.py'}:reward"]


def logged_by_trl(folder, *names, **options):
    """A TRL checkpoint, whose log has the rewards of these functions."""
    (folder / "step_4" / "contract.json").unlink(missing_ok=True)
    usual = {"use_cpu": True, "bf16": False, "report_to": "none", "num_generations": 4}
    usual["max_completion_length"] = 3
    arguments = trl.GRPOConfig(output_dir=str(folder), **usual | options)
    torch.save(arguments, folder / "step_4" / "training_args.bin")
    means = {name: 0.3 + i for i, name in enumerate(names)}
    weights = options.get("reward_weights", [1.0] * len(names))
    total = sum(weight * mean for weight, mean in zip(weights, means.values(), strict=True))
    entry = {f"rewards/{name}/mean": mean for name, mean in means.items()} | {"reward": total}
    log = json.dumps({"log_history": [entry]}, sort_keys=True)  # as transformers writes it
    (folder / "step_4" / "trainer_state.json").write_text(log)


def numbers(folder):
    """What was measured, without the times, the versions and the digests."""
    (place,) = (folder / "measurements").glob("*_step_4")
    content = ise.load_result(place).to_dict()
    return {key: content[key] for key in content.keys() - {"timing", "provenance"}}


def test_the_written_settings_give_what_the_folder_gives(own, tmp_path):
    file = tmp_path / "measure.yaml"
    options = [own / "step_4", *given(own), *sets()]
    code, text, output = call("check", *options, "--write", file)
    assert (code, f"Next: isentrope measure {file}") == (0, output.splitlines()[-1]), text
    assert set(yaml.safe_load(file.read_text())["estimator"]) == {"eta_list"}  # others: training's
    assert call("measure", *options, "--out", tmp_path / "a")[0] == 0
    assert call("measure", file, "--out", tmp_path / "b")[0] == 0
    assert numbers(tmp_path / "a") == numbers(tmp_path / "b")


def test_the_command_that_check_ends_with_can_be_copied(own, tmp_path):
    code, text, output = call(
        "check", own / "step_4", *given(own), *sets(), "--out", tmp_path / "r"
    )
    assert code == 0, text
    (line,) = (line for line in output.splitlines() if line.startswith("Next: "))
    program, *words = shlex.split(line.removeprefix("Next: "))
    assert (program, words[0]) == ("isentrope", "measure")
    code, text, _ = call(*words)
    assert (code, "nats per token" in text) == (0, True), text


def ran_next(output):
    """Exit status and text of the command that `check` ended with."""
    (line,) = (line for line in output.splitlines() if line.startswith("Next: "))
    program, *words = shlex.split(line.removeprefix("Next: "))
    assert program == "isentrope"
    code, text, _ = call(*words)
    return code, text


@pytest.mark.parametrize("held_out", [False, True])
def test_the_next_command_of_a_recorded_batch_runs(held_out, recorded, tmp_path):
    if held_out:
        write_prompts(recorded / "step_4" / "next_update" / "held_out.jsonl", PROMPTS[8:])
    sizes = sets()[6:]
    code, text, output = call("check", recorded / "step_4", *sizes, "--out", tmp_path / "r")
    assert code == 0, text
    code, text = ran_next(output)
    assert (code, "nats per token" in text) == (0, True), text


def test_the_next_command_of_several_reward_functions_runs(own, tmp_path):
    file = own / "rewards.py"
    file.write_text(REWARD + "def none(response, reference):\n    return -float(len(response))\n")
    logged_by_trl(own, "reward", "none")
    both = [word for name in ("reward", "none") for word in ("--reward", f"{file}:{name}")]
    words = ["--prompts", own / "prompts.jsonl", *both, *sets(), "--out", tmp_path / "r"]
    code, text, output = call("check", own / "step_4", *words)
    assert code == 0, text
    code, text = ran_next(output)
    assert (code, "nats per token" in text) == (0, True), text


def test_demonstrations_without_references_make_the_step_of_fine_tuning(own, tmp_path):
    arguments = TrainingArguments(output_dir=str(own), use_cpu=True, report_to="none")
    torch.save(arguments, own / "step_4" / "training_args.bin")
    lines = [json.dumps({"prompt": prompt, "response": "2"}) for prompt in PROMPTS[:4]]
    (tmp_path / "demonstrations.jsonl").write_text("\n".join(lines))
    more = sets(batch_config__U_file=tmp_path / "demonstrations.jsonl")
    words = [own / "step_4", "--prompts", own / "prompts.jsonl", *more]
    code, text, _ = call("measure", *words, "--out", tmp_path / "run")
    assert code == 0, text
    assert numbers(tmp_path / "run")["step"]["objective"] == "sft"


def test_a_folder_alone_is_checked_and_the_command_says_what_to_fill_in(own):
    code, text, _ = call("check", own / "step_4", *sets())
    assert code == 0
    assert f"Next: isentrope measure {own / 'step_4'} --prompts FILE --reward FILE.py:NAME" in text


def test_a_recorded_batch_needs_nothing_and_errors_are_over_its_prompts(recorded, tmp_path):
    options = sets()[6:]  # no sizes: those of the recorded batch
    code, text, _ = call("measure", recorded / "step_4", *options, "--out", tmp_path / "run")
    assert code == 0, text
    result = numbers(tmp_path / "run")
    assert result["step"]["objective"] == "recorded"
    assert result["batches"]["E"]["prompt_draws"] == result["batches"]["E"]["distinct_prompts"] == 4
    assert result["batches"]["E"]["sequences"] == 256
    assert sum("prompts that made the step" in sentence for sentence in result["warnings"]) == 1
    assert "reward" not in result


def test_prompts_beside_a_recorded_batch_are_those_of_entropy_alone(recorded, tmp_path):
    file = tmp_path / "others.jsonl"
    write_prompts(file, PROMPTS[8:])
    options = [*sets()[:2], *sets()[6:]]  # the size of E alone
    words = [recorded / "step_4", "--prompts", file, *options, "--out", tmp_path / "run"]
    assert call("measure", *words)[0] == 0
    batches = numbers(tmp_path / "run")["batches"]
    assert (batches["U"]["sequences"], batches["E"]["sequences"]) == (8, 64)
    assert batches["E"]["distinct_prompts"] > 8


def test_fresh_batches_are_drawn_where_repeats_or_another_size_are_wanted(recorded):
    verb = MEASURING["measure"]
    words = {"config": str(recorded / "step_4"), "prompts": str(recorded / "prompts.jsonl")}
    words["reward"] = [f"{recorded / 'rewards.py'}:reward"]
    for option in ({"repeats": 2}, {"settings": ["batch_config.B_U=32"]}):
        config = verb(**words, **option).configuration
        assert (config.batch_config.U_file, config.estimator.objective) == (None, "dr_grpo")


def test_a_contract_says_which_prompts_were_held_out(own):
    data = {"dataset_name": "addition", "dataset_options": {"digits": 1}, "train_split": "train"}
    run = {"data": data | {"held_out_split": "test"}, "training": {"prompts_per_step": 5}}
    (own / "step_4" / "contract.json").write_text(json.dumps({"config": run}))
    batch = MEASURING["measure"](config=str(own / "step_4")).configuration.batch_config
    assert (batch.dataset_name, batch.E_split, batch.U_split) == ("addition", "test", "train")
    assert (batch.B_U, batch.dataset_options) == (5, {"digits": 1})
    prompts = str(own / "prompts.jsonl")
    named = MEASURING["measure"](config=str(own / "step_4"), prompts=prompts, reward=BY_REFERENCE)
    batch = named.configuration.batch_config
    assert (batch.B_U, batch.dataset_path, batch.dataset_options) == (5, prompts, HALVES)


def test_of_several_checkpoints_no_batch_is_the_recorded_one(recorded):
    shutil.copytree(recorded / "step_4", recorded / "run" / "step_4")
    shutil.copytree(recorded / "step_4", recorded / "run" / "step_8")
    prompts = str(recorded / "prompts.jsonl")
    command = MEASURING["measure"](
        config=str(recorded / "run"), prompts=prompts, reward=BY_REFERENCE
    )
    config = command.configuration
    assert config.checkpoint.checkpoint_path == str(recorded / "run")
    assert (config.batch_config.U_file, config.batch_config.dataset_options) == (None, HALVES)


@pytest.mark.parametrize("name", MEASURING)
def test_every_verb_that_measures_takes_a_folder(name, recorded):
    more = {"control": "clip_cov"} if name == "try" else {}
    config = MEASURING[name](config=str(recorded / "step_4"), **more).configuration
    assert config.batch_config.U_file.endswith("next_update/rollouts.parquet")
    assert config.estimator.objective == ("dr_grpo" if name == "try" else "recorded")


def test_a_folder_is_planned_as_it_is_measured(own):
    words = [own / "step_4", *given(own), *sets()]
    done = command_line.call("plan", *words, "--verb", "measure", "--json", status=0)
    (planned,) = json.loads(done.stdout)
    assert (planned["verb"], planned["batches"][0]["responses"]) == ("measure", 64)


def test_a_folder_is_evaluated_on_all_prompts_that_are_given(own, tmp_path):
    few = {"evaluation.samples_per_prompt": 2, "sampling.max_new_tokens": 3}
    options = [word for key, value in few.items() for word in ("--set", f"{key}={value}")]
    words = [own / "step_4", *given(own), *options, "--out", tmp_path / "run", "--json"]
    done = command_line.call("evaluate", *words, status=0)
    assert json.loads(done.stdout)["rows"][0]["n_prompts"] == len(PROMPTS)


def test_a_folder_is_evaluated_on_what_training_held_out_and_not_on_its_batch(own, recorded):
    data = {"dataset_name": "addition", "dataset_options": {"digits": 1}, "train_split": "train"}
    run = {"data": data | {"held_out_split": "test"}, "training": {"prompts_per_step": 5}}
    (own / "step_4" / "contract.json").write_text(json.dumps({"config": run}))
    kinds = {verb.name: verb for verb in COMMANDS}
    data = kinds["evaluate"](config=str(own / "step_4")).configuration.data
    assert (data.dataset_name, data.split, data.dataset_options) == (
        *("addition", "test"),
        {"digits": 1},
    )
    (own / "step_4" / "contract.json").unlink()
    code, text, _ = call("evaluate", recorded / "step_4")
    assert (code, "does not say on which prompts" in text) == (1, True), text


MISSING = {
    "give --prompts FILE": [],
    "give --reward FILE.py:NAME": ["--prompts", "own/prompts.jsonl"],
    "--checkpoints names others": ["--checkpoints", "own/*"],
    "leave --prompts and --reward out": ["--prompts", "own/prompts.jsonl", "YAML"],
    "is there already (--write)": ["--write", "own/prompts.jsonl"],
}


@pytest.mark.parametrize("sentence", MISSING)
def test_what_is_missing_or_said_twice_is_one_sentence(sentence, own, monkeypatch):
    monkeypatch.chdir(own.parent)
    (own / "m.yaml").write_text("checkpoint: {checkpoint_path: own/step_4}")
    options = list(MISSING[sentence])
    place = "own/m.yaml" if "YAML" in options else "own/step_4"
    verb = "check" if "--write" in options else "measure"
    code, text, _ = call(verb, place, *(word for word in options if word != "YAML"))
    assert code == 1
    assert sentence in text
    assert len(text) < 400


def test_the_halves_of_a_file_share_no_prompt_and_are_the_same_in_any_order(own):
    file = own / "prompts.jsonl"
    halves = {}
    for order in (1, -1):
        lines = file.read_text().splitlines()
        file.write_text("\n".join(lines[::order]))
        for split in ("train", "test"):
            task = ise.load_task("prompts", split, file, test_share=0.5)
            halves[split, order] = {prompt.text for prompt in task.prompts}
    assert halves["train", 1] | halves["test", 1] == set(PROMPTS)
    assert not halves["train", 1] & halves["test", 1]
    assert halves["train", 1] == halves["train", -1]


def test_one_prompt_cannot_be_shared(own):
    file = own / "one.jsonl"
    write_prompts(file, PROMPTS[:1])
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  the file says which
        ise.load_task("prompts", "test", file, test_share=0.5)
    assert "1 different prompts" in str(refusal.value)


def test_a_folder_with_one_checkpoint_without_optimizer_names_the_others(own):
    shutil.copytree(own / "step_4", own / "run" / "step_4")
    shutil.copytree(own / "step_4", own / "run" / "step_6")
    (own / "run" / "step_6" / "optimizer.pt").unlink()
    code, text, _ = call("measure", own / "run", *given(own), *sets())
    assert code == 1
    assert "Or leave step_6 out, and give step_4 by a pattern in quotes" in text


def test_a_pattern_of_checkpoints_stands_in_place_of_a_folder(own):
    shutil.copytree(own / "step_4", own / "step_6")
    for name in ("step_4", "step_6"):
        (own / name / "optimizer.pt").unlink()
    words = ["--prompts", own / "prompts.jsonl", "--reward", "prompts"]
    code, text, _ = call("measure", own / "step_[6-8]", *words)
    assert code == 1
    assert f"no optimizer state at {own / 'step_6' / 'optimizer.pt'}" in text  # it was found
    code, text, _ = call("measure", own / "step_[79]", *words)
    assert code == 1
    assert "No checkpoint folder matches" in text


def test_a_message_that_names_a_setting_says_how_it_is_given_here(own):
    verb = MEASURING["measure"]
    named = verb.sentence_of(ValueError("Give its folder by checkpoint.base_model."))
    assert named.endswith("Here settings are given as --set checkpoint.base_model=VALUE.")
    for sentence in (
        "There is no checkpoint.pt.",
        "The folder checkpoint.old/4 is empty.",
        "There is no checkpoint.pth.",
        "The reward function good of sampling.py failed (evaluation.py, line 3).",
        "Give --set estimator.single_eta=1e-4.",
    ):
        assert verb.sentence_of(ValueError(sentence)) == sentence
    deeper = verb.sentence_of(ValueError("It has precision.update_vector.use_amp."))
    assert deeper.endswith("as --set precision.update_vector.use_amp=VALUE.")
    (train,) = (command for command in COMMANDS if command.name == "train")
    both = "Give checkpoint.base_model, or set model.allow_hub=true in training."
    assert "--set model.allow_hub=VALUE" in train.sentence_of(ValueError(both))
    unknown = call("measure", own / "step_4", "--set", "batch_config.BE=64")[1]
    absent = call("measure", own / "nowhere")[1]
    assert "--set" not in unknown + absent


def test_every_reward_that_is_given_counts_by_any_road(own, tmp_path):
    file = own / "rewards.py"
    file.write_text(REWARD + "def none(response, reference):\n    return -float(len(response))\n")
    logged_by_trl(own, "reward", "none", reward_weights=[1.0, 0.5])
    prompts = ["--prompts", own / "prompts.jsonl"]
    both = [word for name in ("reward", "none") for word in ("--reward", f"{file}:{name}")]
    names = f"[{file}:reward, {file}:none]"
    roads = {
        "options": both,
        "reversed": [*both[2:], *both[:2]],
        "task": ["--set", f"batch_config.task={names}"],
        "key": ["--set", f"batch_config.dataset_name={names}", *both[:2]],
    }
    sizes = sets(analysis__reward="true", batch_config__B_E=16, estimator__order=0)
    found = {}
    for road, words in roads.items():
        words = [*prompts, *words, *sizes, "--out", tmp_path / road]
        code, text, _ = call("measure", own / "step_4", *words)
        assert code == 0, text
        found[road] = numbers(tmp_path / road)["reward"]
    assert all(reward == found["options"] for reward in found.values())
    mixed = ["--reward", "addition", *both[:2]]
    assert "addition is a whole task" in call("measure", own / "step_4", *prompts, *mixed)[1]
    one, message, _ = call("measure", own / "step_4", *prompts, *both[:2], *sets())
    assert (one, "give all 2 reward functions of training" in message) == (1, True)


def test_python_says_it_too_where_weights_follow_from_the_order_alone(own, caplog):
    logged_by_trl(own, "first", "second", reward_weights=[1.0, 0.5])
    state = own / "step_4" / "trainer_state.json"
    log = json.loads(state.read_text())
    log["log_history"][0]["reward"] = None  # no sum places them
    state.write_text(json.dumps(log))

    def first(completions, **_):
        return [float(len(text)) for text in completions]

    def second(completions, **_):
        return [float("1" in text) for text in completions]

    settings = {"sampling": {"max_new_tokens": 3}, "batch_config": {"B_U": 3, "G": 4}}
    with ise.Checkpoint(own / "step_4") as checkpoint:
        checkpoint.draw(PROMPTS, [first, second], E=8, settings=settings)
    assert "had which weight in training is in no file: 1 first, 0.5 second" in caplog.text


@pytest.mark.parametrize("columns", [("prompt", "reference"), ("prompt_ids", "response_ids")])
def test_a_table_that_is_no_batch_is_refused_by_its_columns(columns, own, tmp_path):
    file = tmp_path / "U.parquet"
    write_table(pa.table({name: ["1"] for name in columns}), file)
    words = [own / "step_4", "--prompts", own / "prompts.jsonl", *sets(batch_config__U_file=file)]
    code, text, _ = call("measure", *words, "--out", tmp_path / "run")
    assert code == 1
    assert "U.parquet is no batch of responses: it lacks" in " ".join(text.split())
    assert "prompt_index" in text
