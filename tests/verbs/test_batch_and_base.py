"""What the batch, the model and its base tell of training: refused, or said in the result."""

import pytest
import torch
from safetensors.torch import load_file, save_file

import isentrope as ise
from isentrope import Policy, Rollouts, sample, score
from isentrope.checkpoint.infer.step import Use
from isentrope.checkpoint.infer.unshown import notes_on_arguments, notes_on_base, notes_on_batch
from isentrope.checkpoint.limits import training_dropout
from isentrope.commands.measure import measure
from isentrope.config.io import load_config
from isentrope.models.adapter import base_type
from isentrope.verbs.check import check
from tests.tiny_checkpoint import edit_json, over_own_base, settings
from tests.verbs.as_trained import logged, settled, with_arguments

trl = pytest.importorskip("trl")
QUICK = ("estimator.eta_list=[1e-3]", "estimator.order=1")


@pytest.fixture(scope="module")
def earlier(tiny):
    """Draws of an earlier policy with their log-probabilities."""
    policy = Policy.from_checkpoint(tiny / "step_4")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for x in policy.theta.values():
            x.add_(0.2 * torch.randn(x.shape, generator=generator))
    U = sample(policy, [[3], [4], [5], [6]], 32, max_new_tokens=8, seed=0)
    return U.with_columns(advantages=[1.0, -1.0] * 16)


def on(tiny, tmp_path, U, *overrides, name="run"):
    """A configuration that measures the step of a batch."""
    file = f"batch_config.U_file={U.save(tmp_path / 'U.parquet')}"
    where = f"output.directory={tmp_path / name}"
    return load_config(settings(tiny), [file, where, *QUICK, *overrides])


def test_a_batch_of_another_policy_is_refused_and_off_policy_is_the_way_out(
    tiny, earlier, tmp_path
):
    with pytest.raises(ValueError, match=r"off_policy: true weights its tokens by this record"):
        measure(on(tiny, tmp_path, earlier))
    (result,) = measure(on(tiny, tmp_path, earlier, "estimator.off_policy=true")).results
    assert result.step.gradient_norm > 0
    assert any("sampler's record, which is believed" in w for w in result.warnings)


@pytest.mark.parametrize("off_policy", ["true", "false"])
def test_a_record_that_cannot_be_of_the_batch_leaves_no_step(tiny, earlier, tmp_path, off_policy):
    U = earlier.with_columns(sampler_logprobs=[x - 1.5 for x in earlier.sampler_logprobs])
    config = on(tiny, tmp_path, U, f"estimator.off_policy={off_policy}")
    with pytest.raises(ValueError, match="where draws of any policy have 1") as caught:
        measure(config)
    assert "ignore_training_settings" not in str(caught.value)
    assert not list((tmp_path / "run").rglob("results.json"))
    failed = [f for f in check(config)["step_4"] if f.passed is False and "any policy" in f.detail]
    assert [f.name for f in failed] == ["U is a draw of the policy"]


def test_off_policy_where_nothing_is_stale_changes_nothing(tiny, tmp_path):
    policy = Policy.from_checkpoint(tiny / "step_4", temperature=1.0)
    U = Rollouts([[3 + i] for i in range(4)], [[4, 1], [5, 1]] * 4, [i // 2 for i in range(8)])
    logprobs = list(score(policy, U).logprobs)  # two tokens each
    U = U.with_columns(sampler_logprobs=logprobs, advantages=[1.0, -1.0] * 4)
    runs = [
        measure(on(tiny, tmp_path, U, f"estimator.off_policy={value}", name=value))
        for value in ("false", "true")
    ]
    norms = [run.results[0].step.gradient_norm for run in runs]
    assert norms[0] == pytest.approx(norms[1], rel=1e-9)


@pytest.mark.parametrize(
    ("rate", "file"),
    [("attention_dropout", "base/config.json"), ("lora_dropout", "step_4/adapter_config.json")],
)
def test_dropout_of_training_is_refused_until_it_is_acknowledged(trained, tmp_path, rate, file):
    edit_json(trained / file, **{rate: 0.1})
    over_own_base(trained)
    content = settings(trained, batch_config={"G": 3}, sampling={"max_new_tokens": 2})
    where = f"output.directory={tmp_path / 'run'}"
    quick = [where, "estimator.eta_list=[1e-3]", "estimator.order=0"]
    with pytest.raises(ValueError, match=r"rate 0\.1"):
        measure(load_config(content, quick))
    ignored = "estimator.ignore_training_settings=[dropout]"
    (result,) = measure(load_config(content, [*quick, ignored])).results
    assert any("drop activations" in sentence for sentence in result.warnings)


def test_trls_disable_dropout_is_honoured_where_it_acts(trained):
    edit_json(trained / "step_4" / "adapter_config.json", lora_dropout=0.1)
    model = Policy.from_checkpoint(trained / "step_4").model
    assert all("lora_dropout" in name for name in training_dropout(model, {}))
    assert training_dropout(model, {}) != {}
    assert training_dropout(model, {"disable_dropout": True}) == {}
    model.config.attention_dropout = 0.1
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.1
    kept = training_dropout(model, {"disable_dropout": True})
    assert kept
    assert all(name.endswith("self_attn") for name in kept)


# --- what a batch and a base do not show ------------------------------------------------------


def notes_of(folder, *overrides):
    """What is said of a batch and of a base beside the numbers."""
    config, _ = settled(folder, *overrides)
    fields = ise.Checkpoint(folder / "step_4").argument_fields
    U = Rollouts([[3, 4]], [[5, 1]], [0])
    of_base = notes_on_base(fields, base_type(folder / "step_4"), None)
    return " ".join([*of_base, *notes_on_batch(fields, U, config.batch_config.U_file)])


def test_a_trainers_log_says_in_the_result_what_it_cannot_show(trained):
    with_arguments(trained)
    assert "env_mask" in notes_of(trained, logged(trained, 5))
    assert notes_of(trained) == ""


@pytest.mark.parametrize(
    ("options", "stored", "words"),
    [
        ({"model_init_kwargs": {"dtype": "bfloat16"}}, "float32", "loaded the base"),
        ({"model_init_kwargs": {"dtype": "auto"}}, "bfloat16", "loaded the base"),
        ({}, "bfloat16", "Where training loaded it so"),
        ({}, "float32", ""),
        ({"model_init_kwargs": {"dtype": "float32"}}, "bfloat16", ""),
    ],
)
def test_a_base_of_16_bits_under_an_adapter_is_noted(trained, options, stored, words):
    over_own_base(trained)
    file = trained / "base" / "model.safetensors"
    tensors = {name: x.to(getattr(torch, stored)) for name, x in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    with_arguments(trained, **options)
    notes = notes_of(trained)
    assert ("v differed by 11 %" in notes) == bool(words)
    assert words in notes
    with_arguments(trained, **options | {"bf16": True})
    assert notes_of(trained) == ""  # the note on autocast says it


def test_products_of_ten_bits_are_noted(trained):
    with_arguments(trained, tf32=None)
    assert not any("TF32" in note for note in settled(trained)[1].notes)
    (note,) = notes_on_arguments({"tf32": True}, Use("dapo"))
    assert "TF32" in note


def test_demonstrations_that_training_cut_are_noted(trained):
    with_arguments(trained, trl.SFTConfig, max_length=3)
    assert "1 of 1 demonstrations" in notes_of(trained)
    with_arguments(trained, trl.SFTConfig, max_length=4)
    assert notes_of(trained) == ""


def test_the_order_of_a_trainer_of_transformers_needs_no_file_of_names(trained, tmp_path):
    """It makes the groups. Without its arguments nothing says who made them."""
    for name in ("parameter_names.json", "contract.json"):
        (trained / "step_4" / name).unlink()
    quick = ["estimator.eta_list=[1e-3]", "estimator.order=0", "estimator.objective=dapo"]

    def warnings(name):
        where = f"output.directory={tmp_path / name}"
        (result,) = measure(load_config(settings(trained), [*quick, where])).results
        return " ".join(result.warnings)

    assert "which no name confirms" in warnings("unknown")
    with_arguments(trained, max_completion_length=3, num_generations=4, max_grad_norm=1.0)
    assert "which no name confirms" not in warnings("of_trl")
