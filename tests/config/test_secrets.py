import json

import pytest

from isentrope.config.io import ConfigError, dump_config, load_config
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.system.secrets import secrets_in, without_secrets

VALUE = "hf_" + "a1B2" * 9
NAMED = [
    *("hub_token", "push_to_hub_token", "wandb_api_key", "apiKey", "api-key", "APIKEY", "passwd"),
    *("password", "userPassword", "db.pwd", "authorization", "Authorization", "client_secret"),
    *("secretKey", "AWS_SECRET_ACCESS_KEY", "credentials", "private-key", "accessToken", "token"),
    *("new_password", "label_api_key", "rewardModelApiKey", "image-access-token", "hub_keys"),
]
VALUES = [
    VALUE,
    "AKIA" + "IOSFODNN7EXAMPLE",
    "glpat-" + "a1B2" * 5,
    "github_pat_" + "a1B2" * 8,
    "ghp_" + "a1B2" * 9,
    "sk-" + "a1B2" * 8,
    "sk-ant-api03-" + "a1B2" * 8,
    "xoxb-1234567890-" + "a1B2" * 4,
    "Bearer " + "a1B2" * 5,
    "https://user:pa55word@host/data",
    "s3://key:pa55word@bucket",
    "git+https://x:" + VALUE + "@host",
    "-----BEGIN RSA PRIVATE KEY-----",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0abc.sig",
    "http://host/data?user=me&api_key=a1b2c3d4",
    "http://host/data?access-token=a1b2c3d4#top",
    "lr=1e-3,hub_token=a1b2c3d4",
    "token=a1b2c3d4",
    "password: letmein2",
]
HARMLESS = {
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "stop_tokens": "a",
    "max_new_tokens": 3,
    "tokens": 12,
    "tokenizer": "x",
    "hub_token": None,
    "key": "gsm8k/1",
    "keys": 4,
    "prompt_key": "question",
    "input_key": "problem",
    "primary_key": "id",
    "author_key": "name",
    "user_token": "<|user|>",
    "turn_token": "####",
    "monkey": "x",
    "keyboard": "x",
    "turkey": "x",
    "tokens_per_step": 4,
    "nested": [{"bos_token": "b"}],
    "path": "disk-2/task-sk-learn/https://host:8080/a@b",
    "sha256": "9f" * 32,
    "author": "x",
    "system_prompt": "You have a basic understanding of numbers and are a bearer of good-news.",
    "system": "Use basic arithmetic-operations2.",
    "name": "glow-in-the-dark-experiment-12",
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("value", ["abc", 1234567, ["abc"], {"x": "abc"}], ids=type)
def test_a_key_is_recognised_in_any_spelling(name, value):
    weak = name == "token" and not isinstance(value, str)
    assert bool(list(secrets_in({"a": [{"kwargs": {name: value}}]}))) is not weak


@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_recognised_wherever_it_is(value):
    assert list(secrets_in({"a": [{"b": f"x {value}"}]})) == ["a[0].b"]
    assert list(secrets_in({"a": {value: 1}}))
    assert value not in without_secrets(f"got {value!r}")


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=512,pad_token=<pad>,betas=(0.9, 0.99)",
        "eos_token=</s>|stop_token=####",
        "http://host/data?key=problem&num_tokens=4&tokenizer=qwen2",
        "Remember the password: it is the sum of all the numbers that you see.",
    ],
)
def test_a_pair_that_is_no_secret_is_kept(text):
    assert list(secrets_in({"a": text})) == []


@pytest.mark.parametrize("text", ["a", "a=", 'a"', " ", ":", "a:"])
def test_a_long_text_is_looked_through_once(text):
    long = text * 200_000  # seconds where the time grows with the square of the length
    assert list(secrets_in({"a": long})) == []
    without_secrets(long)


def test_tokens_of_a_tokenizer_are_no_secrets():
    assert list(secrets_in(HARMLESS)) == []
    assert without_secrets(json.dumps(HARMLESS)) == json.dumps(HARMLESS)


SETTINGS = [
    "trainer.hub_token=abc123",
    "trainer.hub_token=[abc123]",
    "trainer.hub_token={abc123: abc123}",
    "trainer.push_to_hub_token=abc123",
    "trainer.model_init_kwargs={token: abc123}",
    "trainer.model_init_kwargs={headers: {authorization: Bearer abc123}}",
    "trainer.model_init_kwargs={api-key: abc123}",
    "trainer.lr_scheduler_kwargs={a: [{passwd: abc123}]}",
    "trainer.vllm_server_host=" + VALUE,
    "trainer.vllm_server_base_url=https://user:abc123@host",
    "trainer.wandb_api_key=abc123",
    "output.secret_key=abc123",
    "model.path=https://user:abc123@host/model",
]


@pytest.mark.parametrize("root", [TrainConfig, SftConfig])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_secret_is_refused_and_not_repeated(root, setting):
    with pytest.raises(ConfigError, match=r"secret.*HF_TOKEN") as error:
        load_config({"model": {"path": "toy"}}, [setting], root=root)
    assert "abc123" not in str(error.value)
    assert VALUE not in str(error.value)


@pytest.mark.parametrize(
    "setting",
    [
        "trainer.hub_token=12345678901234567890123",
        "trainer.hub_token=[abc123",
        f"{VALUE}",
        f"trainer.hub_token={VALUE}: [",
        f"trainer.hub_token.x.{VALUE}=1",
        f"trainer.beta={VALUE}",
        f"trainer.{VALUE}=1",
        "trainer.hub_token=!abc123 abc123",
    ],
)
def test_what_is_refused_for_another_reason_repeats_no_secret(setting):
    with pytest.raises(ConfigError) as error:
        load_config({"model": {"path": "toy"}}, [setting], root=TrainConfig)
    assert not any(part in str(error.value) for part in ("abc123", VALUE, "12345678901234567890"))


def test_a_secret_is_not_written_either():
    config = TrainConfig.model_validate(
        {"model": {"path": "toy"}, "trainer": {"hub_token": "abc123"}}
    )
    with pytest.raises(ConfigError, match=r"trainer\.hub_token is a secret"):
        dump_config(config)
