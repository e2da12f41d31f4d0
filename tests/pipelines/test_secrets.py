import pytest

from isentrope.config.io import ConfigError, load_config
from isentrope.config.secrets import secrets_in
from isentrope.config.train import SftConfig, TrainConfig

VALUE = "hf_" + "a1B2" * 9


@pytest.mark.parametrize("root", [TrainConfig, SftConfig])
@pytest.mark.parametrize(
    "setting",
    [
        "trainer.hub_token=abc",
        "trainer.push_to_hub_token=abc",
        "trainer.model_init_kwargs={token: abc}",
        "trainer.vllm_server_host=" + VALUE,
        "trainer.wandb_api_key=abc",
        "output.secret_key=abc",
    ],
)
def test_a_secret_is_refused_and_not_repeated(root, setting):
    with pytest.raises(ConfigError, match=r"secret.*HF_TOKEN") as error:
        load_config({"model": {"path": "toy"}}, [setting], root=root)
    assert "abc" not in str(error.value)
    assert VALUE not in str(error.value)


def test_tokens_of_a_tokenizer_are_no_secrets():
    harmless = {
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "stop_tokens": "a",
        "max_new_tokens": "3",
        "tokenizer": "x",
        "hub_token": None,
        "key": "",
        "nested": [{"bos_token": "b"}],
    }
    assert list(secrets_in(harmless)) == []
