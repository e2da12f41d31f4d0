"""The probe on trainers that are not ours: what it refuses, survives, and leaves as it was."""

import pytest
import torch

from isentrope import EntropyProbe, ProbeOptions
from tests.probe import following


def probe(**options):
    return EntropyProbe(["1+2=", "5+4="], every=1, size=8, options=ProbeOptions(**options))


def test_dropout_is_in_the_gradient_and_not_in_the_logged_reading_and_the_run_is_the_same(tmp_path):
    plain, probed = (following.grpo(tmp_path, dropout=0.3) for _ in range(2))
    reader = probe().attach(probed)
    for made in (plain, probed):
        following.run(made)
    losses = [line["probe/change"] for line in probed.state.log_history if "loss" in line]
    assert losses == [reading.change.value for reading in reader.history]
    assert len(losses) == 3
    for name, parameter in following.trained(plain).items():
        assert torch.equal(parameter, following.trained(probed)[name]), name
    for reading in reader.history:  # sampled and scored without dropout: one distribution
        assert reading.trust.verdict == "trust"
    modes = {module.training for module in probed.model.modules()}
    assert modes == {True}


def test_a_failure_is_said_once_and_the_run_goes_on_as_it_would_have(tmp_path, caplog):
    plain, probed = (following.grpo(tmp_path) for _ in range(2))
    reader = EntropyProbe(["1+2=" * 20], every=1, size=8).attach(probed)  # no room for a response
    for made in (plain, probed):
        following.run(made)
    told = [r.message for r in caplog.records if "probe is off" in r.message]
    assert len(told) == 1
    assert "off from step 1 on; training continues. Cause: Prompt" in told[0]
    assert reader.history == []
    for name, parameter in following.trained(plain).items():
        assert torch.equal(parameter, following.trained(probed)[name]), name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"top_k": 5}, r"args\.top_k=5"),
        ({"top_p": 0.9}, r"args\.top_p=0\.9"),
        ({"min_p": 0.1}, r"args\.min_p=0\.1"),
        ({"repetition_penalty": 1.2}, r"args\.repetition_penalty=1\.2"),
        ({"generation_kwargs": {"typical_p": 0.5}}, r"generation_kwargs\.typical_p=0\.5"),
        ({"generation_kwargs": {"eos_token_id": 5}}, r"generation_kwargs\.eos_token_id=5"),
        ({"optim": "adafactor"}, "optimizer Adafactor"),
        ({"optim": "lomo"}, r"optimizer lomo: the trainer cannot make it .*lomo-optim"),
        ({"optim": "grokadamw"}, r"optimizer grokadamw: the trainer cannot make it .*install"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_training(tmp_path, options, said):
    made = following.grpo(tmp_path, **options)
    with pytest.raises(ValueError, match=said):
        probe().attach(made)
    assert not any(isinstance(c, EntropyProbe) for c in made.callback_handler.callbacks)


def test_a_filter_of_the_models_own_generation_config_is_seen_where_the_trainer_leaves_it(tmp_path):
    made = following.grpo(tmp_path, generation_kwargs={"cache_implementation": "dynamic"})
    made.model.get_base_model().generation_config.no_repeat_ngram_size = 3
    with pytest.raises(ValueError, match=r"model\.generation_config\.no_repeat_ngram_size=3"):
        probe().attach(made)


def test_a_trainer_without_temperature_or_length_is_asked_for_them(tmp_path):
    made = following.sft(tmp_path)
    with pytest.raises(ValueError, match=r"temperature.*EntropyProbe"):
        probe().attach(made)
    with pytest.raises(ValueError, match=r"max_completion_length.*max_new"):
        probe(temperature=1.0).attach(made)


def test_an_optimizer_given_as_a_class_comes_before_the_one_that_is_named(tmp_path):
    made = following.grpo(tmp_path, optim="lomo")
    made.optimizer_cls_and_kwargs = torch.optim.AdamW, {"lr": 1e-3}
    probe().attach(made)


@pytest.mark.parametrize("form", ["class", "object"])
def test_an_optimizer_given_as_a_class_or_as_an_object_is_looked_at(tmp_path, form):
    made = following.grpo(tmp_path, optim="lomo" if form == "class" else "adamw_torch")
    trained = [p for p in made.model.parameters() if p.requires_grad]
    if form == "class":
        made.optimizer_cls_and_kwargs = torch.optim.NAdam, {"lr": 1e-3}
    else:
        made.optimizer = torch.optim.NAdam(trained)
    with pytest.raises(ValueError, match="optimizer NAdam"):
        probe().attach(made)
