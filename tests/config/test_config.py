import pytest
import yaml
from pydantic import BaseModel

import isentrope as ise
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import ConfigError, dump_config, load_config
from isentrope.config.measure import ELSEWHERE, MeasureConfig
from isentrope.config.train import SftConfig, TrainConfig

CHECKPOINT = {"checkpoint": {"checkpoint_path": "somewhere"}}


def load(*overrides):
    return load_config(CHECKPOINT, overrides)


def complaint(*overrides, source=CHECKPOINT):
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("estimator.eta_lst", "estimator.eta_list"),
        ("batch_config.b_e", "batch_config.B_E"),
        ("estimator.checkpoint_pth", "checkpoint.checkpoint_path"),
        ("batch_confg.B_E", "batch_config"),
        ("precision.runtime", "precision.runtime_dtype"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_valid_one(given, nearest):
    said = complaint(f"{given}=1")
    assert given.split(".")[0] in said
    assert said.endswith(f"the nearest valid key is {nearest!r}.")


@pytest.mark.parametrize("section", ["entropy_probe", "fisher_kernel", "analysis"])
def test_sections_that_would_do_nothing_are_unknown(section):
    assert "Unknown key" in complaint(f"{section}.enabled=true")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("batch_config.B_E=0", "batch_config.B_E"),
        ("batch_config.G=1", "greater than or equal to 2"),
        ("batch_config.dataset_name=gsm9k", "choose one of gsm8k"),
        ("estimator.order=3", "should be 0, 1 or 2, got 3"),
        ("estimator.eta_list=[-1e-6]", "greater than 0"),
        ("estimator.eta_list=[]", "at least 1 item"),
        ("estimator.single_eta=.inf", "a valid number"),
        ("sampling.top_k=50", "sample from another policy"),
        ("sampling.top_p=0.9", "sample from another policy"),
        ("sampling.temperature=0", "greater than or equal to 0.000001"),
        ("precision.runtime_dtype=bfloat16", "'float64' or 'float32'"),
        ("precision.matmul_precision=high", "turns TF32 back on"),
        ("checkpoint.device_map=gpu", "checkpoint.device_map"),
        ("checkpoint.checkpoint_path=[]", "at least one checkpoint"),
        ("detailed_logging.level=chatty", "'minimal', 'standard', 'detailed' or 'debug'"),
        ("B_E", "section.key=value"),
        ("estimator.eta_list=[", "not YAML"),
        ("checkpoint.checkpoint_path.x=1", "is a value, not a section"),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_a_sentence(override, said):
    assert said in complaint(override)


def test_a_length_for_an_objective_that_has_none_is_refused():
    said = complaint("estimator.objective=grpo", "estimator.max_response_length=9")
    assert "acts with the objective dr_grpo only" in said


def test_a_configuration_without_checkpoint_says_what_it_needs():
    assert complaint(source={}) == "The configuration needs 'checkpoint'."


def test_numbers_may_be_written_as_1e_5(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("checkpoint: {checkpoint_path: x}\nestimator: {eta_list: [1e-5, 2E-6, 3]}\n")
    assert load_config(file).estimator.eta_list == [1e-5, 2e-6, 3.0]
    assert load("estimator.eta_list=[1e-5]").estimator.eta_list == [1e-5]


def test_a_key_given_twice_is_refused(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("checkpoint: {checkpoint_path: x}\ncheckpoint: {checkpoint_path: y}\n")
    assert "'checkpoint' is given twice" in complaint(source=file)


def test_a_missing_file_and_a_file_without_sections_are_refused(tmp_path):
    assert "There is no file" in complaint(source=tmp_path / "absent.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    assert "holds no sections" in complaint(source=tmp_path / "list.yaml")


@pytest.mark.parametrize("kind", [MeasureConfig, TrainConfig, SftConfig, EvaluateConfig])
def test_every_key_has_a_sentence_that_config_show_prints(kind):
    def undescribed(model, place=""):
        for name, field in model.model_fields.items():
            inner = field.annotation
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from undescribed(inner, f"{place}{name}.")
            elif not field.description:
                yield place + name

    assert list(undescribed(kind)) == [], "a string below the field"


@pytest.mark.parametrize("comments", [False, True])
def test_what_is_dumped_is_read_back_equal(tmp_path, comments):
    config = load("batch_config.B_E=7", "estimator.eta_list=[1e-7, 2]", "output.log_level=DEBUG")
    (tmp_path / "c.yaml").write_text(dump_config(config, comments=comments))
    assert load_config(tmp_path / "c.yaml") == config


def test_overrides_leave_the_source_alone():
    source = {"checkpoint": {"checkpoint_path": "x"}}
    load_config(source, ["checkpoint.checkpoint_path=y"])
    assert source["checkpoint"]["checkpoint_path"] == "x"


def test_without_a_sweep_only_the_rate_of_interest_is_measured():
    assert load("estimator.eta_sweep=false").estimator.etas(3e-6) == [3e-6]
    single = load("estimator.eta_sweep=false", "estimator.single_eta=1e-3").estimator
    assert single.etas(3e-6) == [1e-3]


def test_a_sweep_without_a_list_is_around_the_training_rate():
    assert load().estimator.etas(8e-6) == [1e-6, 2e-6, 4e-6, 8e-6, 16e-6, 32e-6]


def test_a_given_rate_of_interest_joins_the_sweep():
    swept = load("estimator.eta_list=[1e-6]", "estimator.single_eta=1e-5").estimator
    assert swept.etas(0.5) == [1e-6, 1e-5]


def test_a_learning_rate_of_zero_asks_for_another():
    with pytest.raises(ValueError, match="learning rate"):
        load().estimator.etas(0.0)
    assert load("estimator.eta_list=[1e-6]").estimator.etas(0.0) == [1e-6]


NOTES = """
checkpoint:
  checkpoint_path: "/path/to/checkpoint/model"
  optimizer_path: "/path/to/checkpoint/optimizer.pt"
  backbone: "qwen2_5_15"  # Model registry key
  device_map: "cuda"
batch_config:
  dataset_name: "gsm8k_r1_template"
  E_split: "test"
  U_split: "train"
  B_E: 512
  B_U: 64
  G: 8
estimator:
  use_simple_entropy_for_x: false
  eta_sweep: true
  single_eta: 2e-5
  eta_list: [1e-5, 2e-5, 4e-5, 8e-5, 1.6e-4, 3.2e-4, 6.4e-4, 1.28e-3]
precision:
  allow_tf32: false
  matmul_precision: high
  runtime_dtype: float32
  entropy_dtype: float64

  update_vector:
    use_amp: false
    amp_dtype: bfloat16
    grads_fp32: true
detailed_logging:
  enabled: true
  level: "standard"
  log_sequences: false
  log_tokens: false
  log_raw_tensors: false
  output_directory: "entropy_experiments/logs"
  compress: true
  max_files: 50
"""
"""The blocks of the original notes as they stand."""

NOTES_PROBE = """
entropy_probe:
  enabled: true
  mode: "simple"          # Only compute fast δH
  log_every: 1            # Log every step
  preconditioning: "previous_step"
"""


@pytest.fixture
def notes(tmp_path):
    path = tmp_path / "notes.yaml"
    path.write_text(NOTES)
    return path


def test_the_blocks_of_the_notes_are_read_with_their_meaning(notes, tmp_path, caplog):
    config = load_config(notes)
    assert config.checkpoint.base_model == "Qwen/Qwen2.5-1.5B"
    assert config.estimator.method == "prefix"
    assert config.estimator.etas(1.0) == [x * 1e-5 for x in (1, 2, 4, 8, 16, 32, 64, 128)]
    assert config.precision.updating == config.precision.measuring
    assert not config.precision.measuring.allow_tf32
    assert config.precision.measuring.matmul_precision == "highest"
    assert caplog.text.count("matmul_precision=high") == 1
    (tmp_path / "dumped.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "dumped.yaml") == config


def test_the_blocks_of_the_notes_mean_the_same_as_a_dictionary_of_pyyaml(notes):
    content = yaml.safe_load(NOTES)
    assert content["estimator"]["single_eta"] == "2e-5"  # a text in YAML 1.1
    assert ise.EntropyMeasurements(content).config == load_config(notes)


@pytest.mark.parametrize("text", ["1e-5", "2E-6", "1e5", "+3e-1", ".5e3", "1.5e5"])
def test_a_number_is_the_same_in_a_file_and_as_pyyaml_reads_it(tmp_path, text):
    written = f"model: {{path: toy}}\ntraining: {{learning_rate: {text}}}\n"
    written += f"trainer: {{adam_epsilon: {text}, names: [{text}]}}\n"
    (tmp_path / "c.yaml").write_text(written)
    config = load_config(yaml.safe_load(written), root=TrainConfig)
    assert config == load_config(tmp_path / "c.yaml", root=TrainConfig)
    assert config.trainer["adam_epsilon"] == config.training.learning_rate == float(text)


def test_texts_that_look_like_numbers_stay_texts():
    prompts = {"checkpoint": {"checkpoint_path": "1e5"}, "batch_config": {"E_split": "1e-5"}}
    config = load_config(prompts)
    assert (config.checkpoint.checkpoint_path, config.batch_config.E_split) == ("1e5", "1e-5")
    assert "finite" in complaint(source={**CHECKPOINT, "estimator": {"single_eta": "1e999"}})


def test_tf32_is_refused_where_the_file_does_not_say_that_it_is_off():
    assert "turns TF32 back on" in complaint("precision.matmul_precision=high")
    assert "medium" in complaint("precision.allow_tf32=false", "precision.matmul_precision=medium")


def test_simple_entropy_and_mixed_precision_of_the_notes_act(notes, tmp_path):
    simple = load_config(
        notes, ["estimator.use_simple_entropy_for_x=true", "precision.update_vector.use_amp=true"]
    )
    assert simple.estimator.method == "surprisal"
    assert simple.precision.updating.autocast == "bfloat16"
    assert simple.precision.measuring.autocast is None


def test_a_backbone_is_never_looked_up_by_a_name_of_another_registry(tmp_path, monkeypatch):
    assert "give checkpoint.base_model" in complaint("checkpoint.backbone=qwen3_17")
    assert load("checkpoint.backbone=a/b").checkpoint.base_model == "a/b"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen2_5_15").mkdir()
    assert load("checkpoint.backbone=qwen2_5_15").checkpoint.base_model == "qwen2_5_15"


def test_the_probe_of_the_notes_is_the_probe_of_training():
    probe = load_config(
        {"model": {"path": "toy"}, **yaml.safe_load(NOTES_PROBE)}, root=TrainConfig
    ).entropy_probe
    assert (probe.enabled, probe.log_every, probe.preconditioning) == (True, 1, "previous_step")


@pytest.mark.parametrize("key", ELSEWHERE)
def test_a_key_of_the_notes_that_is_not_ours_is_answered_by_what_does_it(key):
    for path in (key, f"precision.{key}"):
        assert "docs/from_notes.md" in complaint(f"{path}.x=true")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["checkpoint.backbone=a", "checkpoint.base_model=b"], "two names of one key"),
        (["estimator.use_simple_entropy_for_x=true", "estimator.method=prefix"], "surprisal"),
        (["estimator.use_simple_entropy_for_x=perhaps"], "true or false"),
        (["precision.update_vector={grads_fp32: false}"], "float64"),
        (["precision.update_vector={amp_type: bfloat16}"], "update_vector"),
        (["estimator.micro_batch=3"], "16 bits"),
    ],
)
def test_older_keys_that_contradict_ours_are_refused(overrides, said):
    assert said in complaint(*overrides)


def test_keys_of_earlier_versions_that_did_nothing_are_read(tmp_path):
    idle = {"analysis": {"momentum_steps": 0}, "fisher_kernel": {"sketch": None}}
    where = {"checkpoint": {"checkpoint_path": str(tmp_path)}}
    assert load_config(where | idle) == load_config(where)
    with pytest.raises(ConfigError, match=r"analysis\.momentum_steps"):
        load_config(where | {"analysis": {"momentum_steps": 2}})
