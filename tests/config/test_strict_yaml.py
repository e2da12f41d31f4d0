import time

import pytest

from isentrope.config.io import ConfigError, dump_config, load_config, read_yaml
from isentrope.config.train import TrainConfig

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


def complaint(path):
    with pytest.raises(ConfigError) as caught:
        load_config(path, root=TrainConfig)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[" * 20000, "levels are nested"),
        ("{a: " * 5000, "levels are nested"),
        ("model: &m\n  path: *m\n", "an alias (*name) is not read"),
        ("model:\n  <<: {path: toy}\n", "Unknown key 'model.<<'"),
        ("model: !!python/object/apply:os.system ['true']", "tag"),
        ("training: {steps: !!int x}", "a tag is not read"),
        ("model: !!map x", "tag"),
        ("? [a]\n: b\n", "a key must be a text"),
        ("1: 2\n", "a key must be a text, and '1' is not"),
        ("model: {path: a}\n---\nmodel: {path: b}\n", "another document"),
        ("training: {learning_rate: 1e999}", "not a finite number"),
        ("training: {seed: " + "9" * 6000 + "}", "more than 63 bits"),
        ("model: {path: toy}\ntraining: {seed: 010}", "training.seed"),
        ("model: {path: toy}\ntraining: {seed: 1:30}", "training.seed"),
        ("model: {path: toy}\ntraining: {steps: 1_0}", "training.steps"),
        ("model: {path: toy}\ntraining: {seed: -1}", "greater than or equal to 0, got -1"),
        ("model: {path: toy}\ntrainer: {weight_decay: 1e999}", "not a finite number"),
        ("a: 'x", "not YAML"),
        ("", "holds no sections"),
        ("model: {path: toy}\n" + "#" * 1_000_001, "too many for a configuration"),
        (BOMB + "model: {path: *i}\n", "an alias (*name) is not read"),
    ],
)
def test_a_document_is_refused_quickly_in_a_short_sentence(content, words, tmp_path):
    (tmp_path / "c.yaml").write_text(content)
    start = time.process_time()
    sentence = complaint(tmp_path / "c.yaml")
    assert time.process_time() - start < 2
    assert words in sentence
    assert len(sentence) < 500 + len(str(tmp_path))


@pytest.mark.parametrize("line", ["k{}: 1", "- {}", "- [1, 2, {}]"])
def test_a_document_of_very_many_values_is_refused_before_it_is_built(line, tmp_path):
    text = "\n".join(line.format(i) for i in range(60_000))
    (tmp_path / "c.yaml").write_text(text)
    start = time.process_time()
    assert "more than 20000 keys and values" in complaint(tmp_path / "c.yaml")
    assert time.process_time() - start < 4


def test_what_is_not_utf_8_is_refused_by_its_name(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_bytes("model: {path: é}".encode("latin-1"))
    assert f"{path} cannot be read: it is not UTF-8 text" in complaint(path)


def test_a_value_that_is_long_is_not_repeated_in_full():
    with pytest.raises(ConfigError) as caught:
        load_config({"model": {"path": "toy", "lora_rank": ["a" * 10**6] * 9}}, root=TrainConfig)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "text", ["1e5", "2026", "1.50", "0x10", "010", "yes", "12:30", "2001-01-01"]
)
def test_a_path_that_looks_like_a_number_is_a_text(text, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(f"model: {{path: {text}, lora_target_modules: [{text}]}}\n")
    config = load_config(path, [f"output.directory={text}"], root=TrainConfig)
    assert (config.model.path, config.output.directory) == (text, text)
    assert config.model.lora_target_modules == [text]
    path.write_text(dump_config(config))
    assert load_config(path, root=TrainConfig) == config


def test_a_quoted_number_is_a_text_where_any_value_may_be(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("model: {path: toy}\ndata: {dataset_options: {a: '1e5', b: [1e5], c: 7}}\n")
    config = load_config(path, root=TrainConfig)
    assert config.data.dataset_options == {"a": "1e5", "b": [100000.0], "c": 7}
    path.write_text(dump_config(config))
    assert load_config(path, root=TrainConfig) == config


def test_a_file_of_ours_may_be_edited_but_not_cut(tmp_path):
    path = tmp_path / "c.yaml"
    text = dump_config(load_config({"model": {"path": "toy"}}, root=TrainConfig))
    path.write_text(text.replace("steps: 64", "steps: 65") + "\n# a note\n")
    assert load_config(path, root=TrainConfig).training.steps == 65
    path.write_text(text[: text.index("keep_last")])
    assert "is incomplete" in complaint(path)
    path.write_text("model: {path: toy}\n")  # a user's own file has no such lines
    assert read_yaml(path) == {"model": {"path": "toy"}}


def test_a_folder_is_answered_by_how_to_go_on(tmp_path):
    words = complaint(tmp_path)
    assert f"{tmp_path} is a folder" in words
    assert "`isentrope config show --for VERB`" in words
    assert "check, evaluate, plan and the measuring verbs take the folder" in words
