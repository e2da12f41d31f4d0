import json

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import isentrope as ise
from isentrope import Policy, sample
from isentrope.config.io import ConfigError, load_config
from isentrope.config.train import SftConfig
from isentrope.sampling.tasks.addition import Addition, longest_response
from isentrope.sampling.tasks.prompt_file import PromptFile
from isentrope.training.demonstrations import demonstration_rollouts
from isentrope.training.models import load_trainable
from isentrope.training.run_files import RunFiles
from isentrope.verbs.sft import resume_sft, sft
from tests.adapters import save_base_model
from tests.tiny_checkpoint import as_made_elsewhere, edit_json
from tests.torchrun import torchrun
from tests.training.conftest import small_policy
from tests.training.plain_fine_tuning import mean_surprisal
from tests.training.runs import lines

pytest.importorskip("trl")


def settings_in(folder):
    """Settings of four steps over a base in a folder."""
    save_base_model(small_policy(), folder / "base")
    return {
        "model": {"path": str(folder / "base"), "lora_rank": 2, "lora_alpha": 4},
        "data": {"dataset_name": "addition"},
        "fine_tuning": {"steps": 4, "batch_size": 6, "learning_rate": 1e-2, "warmup_steps": 1},
        "output": {"directory": str(folder / "run"), "report_to": [], "log_level": "WARNING"},
    }


@pytest.fixture
def settings(tmp_path):
    return settings_in(tmp_path)


def run(settings, *overrides):
    return sft(load_config(settings, overrides, SftConfig))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run with these settings, with its folder in tensorboard too; tests only read it."""
    folder = tmp_path_factory.mktemp("plain")
    made = run(settings_in(folder), "output.report_to=[tensorboard]")
    return made, folder / "run"


def test_the_last_loss_is_that_of_the_log_and_tensorboard_has_a_folder(plain):
    made, folder = plain
    assert lines(folder)[-1]["loss"] == made.loss
    assert list((folder / "tensorboard").glob("events.*"))


@pytest.mark.parametrize("rank", [0, 2])
def test_the_model_can_be_measured_and_trained(settings, tmp_path, rank):
    made = run(settings, f"model.lora_rank={rank}", "fine_tuning.steps=12")
    policy = Policy.from_checkpoint(made.model, precision="float32")
    again, tokenizer = load_trainable(str(made.model), lora_rank=rank, lora_alpha=4)
    assert Policy(again, tokenizer, precision="float32").names == policy.names
    shown = demonstration_rollouts(policy, Addition().demonstrations(64, seed=5))
    base = Policy.from_checkpoint(tmp_path / "base", precision="float32")
    with torch.no_grad():
        assert mean_surprisal(policy, shown) < mean_surprisal(base, shown) - 0.01


def test_the_settings_that_are_written_make_the_same_model_to_the_bit(plain, tmp_path):
    first, folder = plain
    config = load_config(folder / "config.yaml", root=SftConfig)
    assert config.provenance["packages"]["torch"]
    again = run(folder / "config.yaml", f'output.directory="{tmp_path / "again"}"')
    for name in ("model/adapter_model.safetensors", "logs/metrics.jsonl"):
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert again.loss == first.loss


def require_same_to_rounding(folders):
    """Runs with the same losses and weights but for rounding."""
    for a, b in zip(*map(lines, folders), strict=True):
        assert b == pytest.approx(a, rel=1e-4)
    a, b = (load_file(folder / "model" / "adapter_model.safetensors") for folder in folders)
    assert max(float((a[n] - b[n]).abs().max()) for n in a) < 1e-4


def test_micro_batches_change_rounding_alone(plain, settings, tmp_path):
    run(settings, "fine_tuning.micro_batch=2")
    require_same_to_rounding((plain[1], tmp_path / "run"))


def test_another_seed_makes_another_model(plain, settings):
    assert run(settings, "fine_tuning.seed=1").loss != plain[0].loss


def test_the_folder_of_a_run_is_refused_and_left_as_it_is(settings, tmp_path):
    (tmp_path / "run" / "logs").mkdir(parents=True)
    metrics = tmp_path / "run" / "logs" / "metrics.jsonl"
    metrics.write_text('{"step": 1}\n')
    for name in ("model", "training_state", "config.yaml"):
        (tmp_path / "run" / name).mkdir()
        with pytest.raises(FileExistsError, match="holds a run"):
            run(settings)
        (tmp_path / "run" / name).rmdir()
    assert metrics.read_text() == '{"step": 1}\n'


def test_a_run_that_stops_leaves_no_model_and_can_be_begun_again(settings, tmp_path):
    asked = load_config(settings, root=SftConfig)
    section = asked.fine_tuning.model_copy(update={"learning_rate": 1e30})  # more than is read
    with pytest.raises(RuntimeError, match=r"step 3, .*lower learning rate"):
        sft(asked.model_copy(update={"fine_tuning": section}))
    assert {p.name for p in (tmp_path / "run").iterdir()} == {"logs"}
    assert run(settings).model.is_dir()
    assert [line["step"] for line in lines(tmp_path / "run")] == [1, 2, 3, 4]


def test_a_disk_that_fills_up_leaves_no_part_of_a_model(settings, tmp_path, monkeypatch):
    from peft import PeftModel

    def full(self, folder, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PeftModel, "save_pretrained", full)
    with pytest.raises(OSError, match="No space left"):
        run(settings)
    assert {p.name for p in (tmp_path / "run").iterdir()} == {"logs"}


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.path=absent/of/it", "absent/of/it"),
        ("model.path=absent/toy/model", "isentrope sft CONFIG --out absent/toy"),
        ("data.dataset_path=absent.jsonl", "no file absent.jsonl"),
        ("fine_tuning.max_length=8", "8 fine_tuning.max_length"),
        ("fine_tuning.micro_batch=4", "batch_size=6 "),
        ("trainer.learning_rate=1e-3", r"set by fine_tuning\.learning_rate"),
        ("trainer.logging_steps=5", "every step is logged"),
        ("trainer.weight_decy=0", "SFTConfig .*'weight_decay'"),
        ("trainer.weight_decay=high", "'high'"),
        ("output.rollouts_every=2", "Unknown key 'output.rollouts_every'"),
        ("fine_tuning.adherence_prompts=1000000", "prompts that are not trained on"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(settings, tmp_path, override, said):
    with pytest.raises((ConfigError, ValueError, FileNotFoundError), match=said):
        run(settings, override)
    assert not (tmp_path / "run").exists()


def test_a_field_of_trl_passes_through(settings, tmp_path):
    run(settings, "trainer.lr_scheduler_type=constant", "fine_tuning.warmup_steps=0")
    assert {line["learning_rate"] for line in lines(tmp_path / "run")} == {1e-2}


def test_a_file_without_responses_is_refused(settings, tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"prompt": "2+2="}')
    data = {"dataset_name": "prompts", "dataset_path": str(tmp_path / "mine.jsonl")}
    with pytest.raises(ValueError, match=r"line 1 .*'response'"):
        run(settings | {"data": data})


def test_a_model_with_dropout_is_refused(settings, tmp_path):
    edit_json(as_made_elsewhere(tmp_path / "base") / "config.json", attention_dropout=0.1)
    with pytest.raises(ValueError, match="has dropout"):
        run(settings)


@pytest.mark.slow
def test_two_processes_make_the_model_of_one_to_rounding(plain, settings, tmp_path):
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(settings))
    done = torchrun(2, "isentrope", "sft", tmp_path / "two.yaml")
    assert done.stdout.count("Wrote") == 1
    require_same_to_rounding((plain[1], tmp_path / "run"))


@pytest.mark.slow
def test_the_toy_learns_to_add_as_it_does_in_plain_torch(tmp_path):
    from tests.config.test_examples import CONFIGS

    made = run(CONFIGS / "sft_toy.yaml", f'output.directory="{tmp_path / "toy"}"')
    policy, task = Policy.from_checkpoint(made.model, precision="float32"), Addition("test")
    drawn = sample(policy, task.prompts, 256, 8, max_new_tokens=longest_response(2), seed=9)
    assert 0.40 < float(ise.with_rewards(drawn, task).rewards.mean()) < 0.58


@pytest.mark.parametrize("rank", [0, 2])
def test_a_resumed_run_is_the_run_that_was_not_stopped_bit_for_bit(
    settings, tmp_path, monkeypatch, rank
):
    settings["model"]["lora_rank"] = rank
    settings["fine_tuning"] |= {"steps": 5, "save_every": 2, "micro_batch": 3}
    run(settings, f'output.directory="{tmp_path / "whole"}"')
    stopped = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(RunFiles, "log", stops_at(5))
        with pytest.raises(KeyboardInterrupt) as caught:
            run(settings)
    assert f"sft --resume {stopped}" in caught.value.__notes__[-1]
    assert [line["step"] for line in lines(stopped)] == [1, 2, 3, 4]
    assert not (stopped / "model").exists()
    made = resume_sft(stopped)
    weights = "model/adapter_model.safetensors" if rank else "model/model.safetensors"
    states = "training_state/step_4/optimizer.pt"
    for name in (weights, "logs/metrics.jsonl", states):
        assert (stopped / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert resume_sft(stopped) == made


def stops_at(step):
    """A log that is interrupted before it writes the line of a step."""
    whole = RunFiles.log

    def log(self, metrics, timing=None):
        if metrics["step"] == step:
            raise KeyboardInterrupt
        whole(self, metrics, timing)

    return log


@pytest.fixture
def begun(settings, tmp_path, monkeypatch):
    """A run that was stopped at its third step, with a checkpoint of the second."""
    with monkeypatch.context() as patch:
        patch.setattr(RunFiles, "log", stops_at(3))
        with pytest.raises(KeyboardInterrupt):
            run(settings, "fine_tuning.save_every=2")
    return tmp_path / "run"


def test_a_run_is_resumed_with_its_own_settings_and_base_alone(settings, begun, tmp_path):
    with pytest.raises(FileExistsError, match="sft --resume"):
        run(settings)
    for change in ("fine_tuning.steps=9", "output.directory=elsewhere", " output.directory =x"):
        with pytest.raises(ConfigError, match="would make it another run"):
            resume_sft(begun, [change])
    text = (begun / "config.yaml").read_text()
    (begun / "config.yaml").write_text(text.replace("warmup_steps: 1", "warmup_steps: 2"))
    with pytest.raises(ConfigError, match=r"fine_tuning\.warmup_steps=1"):
        resume_sft(begun)
    (begun / "config.yaml").write_text(text)
    weights = tmp_path / "base" / "model.safetensors"
    save_file({n: x * 2 for n, x in load_file(weights).items()}, weights, {"format": "pt"})
    as_made_elsewhere(tmp_path / "base")
    with pytest.raises(ConfigError, match="made from other base weights"):
        resume_sft(begun)


def test_a_run_without_checkpoints_is_not_resumed(settings, tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(FileNotFoundError, match=r"fine_tuning\.save_every"):
        resume_sft(tmp_path / "run")


def test_a_checkpoint_of_a_fine_tuning_can_be_measured_as_training_took_it(begun):
    state = begun / "training_state" / "step_2"
    assert Policy.from_checkpoint(state, precision="float32").names
    assert (state / "training_args.bin").is_file()


@torch.no_grad()
def greedy(policy, prompt, longest):
    """The most likely tokens one after the other, by plain passes."""
    ids = policy.tokenizer(prompt.text, add_special_tokens=False)["input_ids"]
    response = []
    while len(response) < longest and policy.eos_token_id not in response:
        logits = policy.model(input_ids=torch.tensor([ids + response])).logits[0, -1]
        response.append(int(logits.argmax()))
    return policy.tokenizer.decode([t for t in response if t != policy.eos_token_id]), response


def test_adherence_is_what_greedy_responses_earn_counted_one_by_one(settings, tmp_path):
    rows = [
        {"prompt": f"{i}+1=", "response": "7", "reference": "78"[i % 2], "key": str(i)}
        for i in range(100)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings["data"] = {"dataset_name": "prompts", "dataset_path": str(tmp_path / "rows.jsonl")}
    settings["fine_tuning"] |= {"steps": 12, "learning_rate": 0.05, "adherence_prompts": 28}
    made = run(settings)
    policy = Policy.from_checkpoint(made.model, precision="float32")
    task = PromptFile(tmp_path / "rows.jsonl")
    trained = {prompt.key for prompt, _ in task.demonstrations(12 * 6, seed=0)}
    held_out = [p for p in task.prompts if p.key not in trained]
    answers = [(p, *greedy(policy, p, 2)) for p in held_out]
    expected = {
        "reward": sum(task.reward(text, p.reference) for p, text, _ in answers) / 28,
        "truncated": sum(policy.eos_token_id not in ids for *_, ids in answers) / 28,
    }
    assert 0.2 < expected["reward"] < 0.8
    assert {name: e.value for name, e in made.adherence.items()} == pytest.approx(expected)
    for estimate in made.adherence.values():
        assert 0 <= estimate.ci_low <= estimate.value <= estimate.ci_high <= 1
