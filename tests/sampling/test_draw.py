"""What responses hold while they are drawn, and how many a device draws at a time."""

from types import SimpleNamespace

import torch

from isentrope.sampling import draw
from tests import cases


def test_a_cache_holds_keys_and_values_of_every_layer():
    config = cases.model("qwen2").config
    width = config.hidden_size // config.num_attention_heads
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * width * 4
    assert draw.cache_bytes(config, 5, 11, 4) - draw.cache_bytes(config, 5, 10, 4) == 5 * token


def test_a_device_takes_what_its_free_memory_holds_and_never_less_than_the_setting(monkeypatch):
    lm = cases.model("qwen2")
    each = draw.cache_bytes(lm.config, 1, 30, 4) + draw.next_logits(lm.config, 1)
    held = int(100 * each / draw.SHARE_OF_FREE) + 10
    monkeypatch.setattr(draw, "free_memory", lambda device: held)

    def at_once(device, batch_size, alone=True):
        policy = SimpleNamespace(device=torch.device(device), causal_lm=lm, alone=alone)
        return draw.sequences_at_once(policy, 10, 20, batch_size)

    assert at_once("cuda", 64) == 100
    assert at_once("cuda", 128) == 128
    assert at_once("cpu", 64) == 64
    assert at_once("cuda", 64, alone=False) == 64
