"""What a text config holds is read from the text config, which multimodal wrappers nest."""

import ast

import pytest
from transformers import LlamaConfig, PreTrainedConfig

from tests.sources import trees

OF_TEXT = set(LlamaConfig().to_dict()) - set(PreTrainedConfig().to_dict()) | {
    *("final_logit_softcapping", "logit_scale", "logits_scaling", "sliding_window", "layer_types"),
    *("num_experts", "router_aux_loss_coef", "output_router_logits", "n_positions"),
}
OF_WRAPPERS_TOO = {"eos_token_id", "bos_token_id", "pad_token_id", "use_cache"}


def is_config(node) -> bool:
    """Whether an expression is some model's whole configuration."""
    return isinstance(node, ast.Attribute) and node.attr == "config"


def direct_reads(tree: ast.AST) -> list[str]:
    """`x.config.vocab_size`, and getattr or hasattr of the same."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_config(node.value):
            found.append(node.attr)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "hasattr")
            and is_config(node.args[0])
            and isinstance(node.args[1], ast.Constant)
        ):
            found.append(node.args[1].value)
    return [name for name in found if name in OF_TEXT - OF_WRAPPERS_TOO]


def test_no_module_reads_from_a_whole_configuration_what_its_text_config_holds():
    reading = {path for path, tree in trees().items() if direct_reads(tree)}
    assert reading <= {"oracle/tabular.py"}  # sets it, in a configuration without parts


@pytest.mark.parametrize(
    "line",
    ["n = lm.config.vocab_size", "getattr(policy.model.config, 'max_position_embeddings', None)"],
)
def test_a_direct_read_is_found(line):
    assert direct_reads(ast.parse(line))
