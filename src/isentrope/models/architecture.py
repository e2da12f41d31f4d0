"""Refuses models whose own code fails here by name; runs experts as plain matrix products.

isentrope evaluates a model in a precision of its choice and differentiates it in forward mode.
Model code that cannot do one of the two fails inside the model; the refusal names the architecture
and the function.
"""

import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from isentrope.system.memory import is_lack_of_memory

EAGER = "eager"
_TORCH, _ISENTROPE = Path(torch.__file__).parent, Path(__file__).parents[1]


class UnsupportedModelError(ValueError):
    """A model that isentrope cannot evaluate or differentiate, by name."""


def name_of(lm: Any) -> str:
    """A model as messages name it, for example "BloomForCausalLM (model type bloom)"."""
    kind = getattr(lm.config, "model_type", None)
    return type(lm).__name__ + (f" (model type {kind})" if kind else "")


@contextmanager
def refusal_by_name(lm: Any) -> Generator[None]:
    """Turn an error inside a model's code into a refusal that names the architecture.

    Args:
        lm: The causal LM.

    Yields:
        Nothing.

    Raises:
        UnsupportedModelError: Where the block fails for any reason but a lack of memory.
    """
    try:
        yield
    except Exception as error:
        if is_lack_of_memory(error) or (isinstance(error, ValueError) and _is_ours(error)):
            raise
        first_line = (str(error).strip() or "no message").splitlines()[0]
        raise UnsupportedModelError(
            f"isentrope does not support {name_of(lm)} as it is loaded: {_place(error)} fails with "
            f"{type(error).__name__} ({first_line.rstrip('.')}), and every operation must run in "
            "the chosen precision and have derivatives (torch.func.jvp and backward). Where that "
            "is a custom kernel, load the model without it (attn_implementation='eager', "
            "experts_implementation='eager')."
        ) from error


def _codes(error: Exception) -> list[CodeType]:
    """The functions that an error came through, outermost first."""
    return [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]


def _is_ours(error: Exception) -> bool:
    """Whether isentrope itself raised it, with a message of its own."""
    raised_in = Path(_codes(error)[-1].co_filename)
    return raised_in.is_relative_to(_ISENTROPE) and raised_in.name != "precision.py"


def _place(error: Exception) -> str:
    """The innermost function of the model's own code that an error came through."""
    files = [(code, Path(code.co_filename)) for code in _codes(error)]
    own = [(c, f) for c, f in files if not any(f.is_relative_to(p) for p in (_TORCH, _ISENTROPE))]
    if not own:
        return "its output embedding, or its backward pass,"
    code, file = own[-1]
    return f"{code.co_qualname} in {file.name}"


def decoder_of(lm: Any) -> Any:
    """The part of a causal LM that makes hidden states of tokens.

    Args:
        lm: The causal LM.

    Returns:
        What `get_decoder` says, or the part called `model` where that is the LM itself.
    """
    decoder = lm.get_decoder()
    return lm.model if decoder is lm else decoder


def use_eager_experts(lm: Any) -> dict[str, str | None]:
    """Let a mixture of experts run as plain matrix products, expert by expert.

    The grouped kernels that transformers chooses by default have neither float64 nor a
    forward-mode derivative. The result is the same function of the weights.

    Args:
        lm: The causal LM; one without experts is not changed.

    Returns:
        How the experts ran before, by part; nothing where nothing was changed.
    """
    before = getattr(lm, "get_experts_implementation", dict[str, str | None])()
    if not set(before.values()) - {None, EAGER}:
        return {}
    with refusal_by_name(lm):
        lm.set_experts_implementation(EAGER)
    return before
