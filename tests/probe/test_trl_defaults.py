"""The two lines on a script of TRL whose settings are TRL's own."""

import copy
import itertools

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig

import isentrope as ise
from tests.adapters import save_base_model
from tests.probe import following
from tests.training.conftest import small_policy

CASES = list(
    itertools.product((None, False), (False, True), (1, 2))
)  # bf16 left alone or off, LoRA, accumulation
FAST = CASES[0], CASES[3]
LORA = LoraConfig(r=2, target_modules="all-linear")


def trained(folder, bf16, adapted, accumulation, probe=None, *, saved=False):
    """A GRPO run: what is not given here is TRL's default, mixed precision and checkpointing too.

    Only the device, the size and the reports are set.
    """
    from trl import GRPOConfig, GRPOTrainer

    args = GRPOConfig(
        output_dir=str(folder),
        max_steps=2,
        num_generations=4,
        max_completion_length=4,
        learning_rate=1e-3,
        save_strategy="steps" if saved else "no",
        save_steps=1,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        gradient_accumulation_steps=accumulation,
        **({} if bf16 is None else {"bf16": bf16}),
    )
    policy = small_policy()
    policy.convert("float32")
    save_base_model(policy, folder / "base")
    policy.model.name_or_path = str(folder / "base")
    trainer = GRPOTrainer(
        policy.model,
        lambda completions, **_: [float(len(text) % 3) for text in completions],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": following.PROMPTS * 4}),
        processing_class=policy.tokenizer,
        peft_config=copy.deepcopy(LORA if adapted is True else adapted or None),
    )
    assert (bool(args.bf16), args.gradient_checkpointing) == (bf16 is None, True)
    if probe is not None:
        probe.attach(trainer)
    return following.run(trainer)


class Keeping(ise.EntropyProbe):
    """A probe that keeps its scored mini-batches."""

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        super().on_pre_optimizer_step(args, state, control, **kwargs)
        self.samples = [*getattr(self, "samples", []), *(x.sample for x in self._before)]


@pytest.mark.parametrize(
    ("bf16", "adapted", "accumulation"),
    [pytest.param(*x, marks=() if x in FAST else pytest.mark.slow) for x in CASES],
)
def test_two_lines_read_every_step_and_change_none(tmp_path, bf16, adapted, accumulation):
    probe = Keeping(["1+2=", "5+4="], every=1, size=16)
    setting = bf16, adapted, accumulation
    probed = trained(tmp_path / "probed", *setting, probe)
    plain = trained(tmp_path / "plain", *setting)
    assert not probe.off
    assert len(probe.samples) == 2
    assert [reading.step for reading in probe.history] == [1, 2]
    weights = following.trained(plain)
    assert all(torch.equal(p, weights[n]) for n, p in following.trained(probed).items())
    for sample in probe.samples:  # drawn and scored in one precision
        torch.testing.assert_close(sample.sampler_logprobs, sample.series[0].logprobs)


def test_an_adapter_of_parameters_is_named_and_the_run_goes_on(tmp_path, caplog):
    experts = ["mlp.down_proj.weight"]
    lora = LoraConfig(r=2, target_modules=[], target_parameters=experts)
    made = trained(tmp_path, False, lora, 1, ise.EntropyProbe(following.PROMPTS, every=1, size=4))
    assert made.state.global_step == 2
    assert "off from step 1 on; training continues. Cause: The adapter changes" in caplog.text
    assert f"target_parameters={experts}" in caplog.text
