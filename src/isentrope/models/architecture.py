"""What architectures do of their own: at both ends, in experts, and in code that fails here.

isentrope evaluates a model in a precision of its choice and differentiates it in forward mode.
Model code that cannot do one of the two fails inside the model; the refusal names the architecture
and the function.

What a model does to the logits of its output embedding: a scale and a soft cap of its config.

    l = f(W h + b),     f(x) = c tanh(x / c)   or   f(x) = m x

Both are declared by the configuration (Gemma caps, Cohere multiplies, Granite divides). They become
part of the head, a module that is differentiated like every other. What a model does beyond that
is found by comparing with its own logits (`policy.own_logits`).

The padding row of an embedding: which of two derivatives is meant.

torch gives the row `padding_idx` of nn.Embedding no gradient where it is looked up, in reverse mode
only. So there are two derivatives wherever the padding token is an input, as it is in any chat
whose padding is its end of turn, and the row moves, as it does under a tied output embedding:

    of the scores       ∂s, ∂H: what a change of the parameters does. E is differentiated so.
    of training         the gradients of a step on U: the lookup of the row contributes nothing.

Reverse mode takes the second, forward mode the first, unless one of these blocks says otherwise.
"""

import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from isentrope.system.memory import is_lack_of_memory

CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Settings of a configuration that cap logits."""

FACTORS = ("logit_scale", "lm_head_multiplier")
"""Settings that multiply logits."""

DIVISOR = "logits_scaling"
"""The setting that divides logits, except in models of `MULTIPLYING`, where it multiplies."""

MULTIPLYING = ("hyperclovax",)
"""Model types that multiply by what others divide by."""

EAGER = "eager"
_TORCH = Path(torch.__file__).parent
_ISENTROPE = Path(__file__).parents[1]


class UnsupportedModelError(ValueError):
    """A model that isentrope cannot evaluate or differentiate, by name.

    Attributes:
        cause: What fails in the model, where that is known; else the whole message.
    """

    def __init__(self, message: str, cause: str = "") -> None:
        super().__init__(message)
        self.cause = cause or message


def name_of(lm: Any) -> str:
    """A model as messages name it, for example "BloomForCausalLM (model type bloom)"."""
    kind = getattr(lm.config, "model_type", None)
    return type(lm).__name__ + (f" (model type {kind})" if kind else "")


def text_config(lm: Any) -> Any:
    """The configuration of what reads and predicts tokens: a part of a multimodal model's own.

    Args:
        lm: The causal LM, or an adapter's wrapper around one.

    Returns:
        The model's configuration itself where it has no parts.
    """
    return lm.config.get_text_config(decoder=True)


def special_tokens(lm: Any) -> list[int]:
    """Tokens that stand for padding, or for what is no text (an image, a sound)."""
    places = lm.config, text_config(lm)
    tables: list[dict[str, Any]] = [vars(config) for config in places]
    return [
        value
        for table in tables
        for name, value in table.items()
        if name.endswith(("_token_id", "_token_index"))
        and name not in _ENDS
        and isinstance(value, int)
    ]


_ENDS = ("bos_token_id", "eos_token_id", "decoder_start_token_id")


def family_of(lm: Any) -> str:
    """What a refusal adds where a model is of a type that is no decoder alone; else nothing."""
    from transformers.models.auto import modeling_auto as auto

    kind = getattr(text_config(lm), "model_type", None) or getattr(lm.config, "model_type", None)
    with_encoder = (
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    )
    for names, family in (
        (with_encoder, "encoder-decoder"),
        ((auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,), "encoder"),
    ):
        if any(kind in part for part in names):
            return (
                f"; {kind} is a type of {family} models, and isentrope measures decoders, which "
                "draw each token from the tokens before it alone"
            )
    return ""


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
    except Exception as error:  # code of any model may fail by any class
        frames = traceback.walk_tb(error.__traceback__)
        codes = [(frame.f_code, Path(frame.f_code.co_filename)) for frame, _ in frames]
        raised_in = codes[-1][1]
        ours = raised_in.is_relative_to(_ISENTROPE) and raised_in.name != "float_switches.py"
        if is_lack_of_memory(error) or (isinstance(error, ValueError) and ours):
            raise
        place = "its output embedding, or its backward pass,"
        for code, file in codes:  # the innermost function of the model's own code
            if not file.is_relative_to(_TORCH) and not file.is_relative_to(_ISENTROPE):
                place = f"{code.co_qualname} in {file.name}"
        first_line = (str(error).strip() or "no message").splitlines()[0]
        cause = f"{place} fails with {type(error).__name__} ({first_line.rstrip('.')})"
        advice = family_of(lm) or (
            ", and every operation must run in the chosen precision and have derivatives "
            "(torch.func.jvp and backward). Where that is a custom kernel, load the model without "
            "it (attn_implementation='eager', experts_implementation='eager')"
        )
        if "pixel_values" in first_line:
            advice = ": it needs images, and isentrope measures texts alone"
        raise UnsupportedModelError(
            f"isentrope does not support {name_of(lm)} as it is loaded: {cause}{advice}.",
            f"In {name_of(lm)}, {cause}.",
        ) from error


def decoder_of(lm: Any) -> Any:
    """The part of a causal LM that makes hidden states of tokens.

    Args:
        lm: The causal LM.

    Returns:
        What `get_decoder` says, or the part called `model` where that is the LM itself. Where it is
        a causal LM inside a wrapper, as in BLIP-2, that one's decoder.
    """
    decoder = lm.get_decoder()
    if decoder is lm:
        return lm.model
    is_causal_lm = hasattr(decoder, "lm_head")
    return decoder_of(decoder) if is_causal_lm else decoder


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


class ScaledHead(nn.Module):
    """An output embedding, its logits multiplied and then capped.

    Attributes:
        embedding: The output embedding.
        factor: m.
        cap: c, or None for no cap.
    """

    def __init__(self, embedding: nn.Module, factor: float, cap: float | None) -> None:
        super().__init__()
        self.embedding = embedding
        self.factor = factor
        self.cap = cap

    @property
    def vocabulary(self) -> int:
        """Rows of the output embedding."""
        weight: Any = self.embedding.weight
        return weight.shape[0]

    def forward(self, hidden: Tensor) -> Tensor:
        """(m, v) logits of (m, d) hidden states."""
        logits = self.embedding(hidden) * self.factor
        return logits if self.cap is None else (logits / self.cap).tanh() * self.cap


def head_of(lm: Any) -> nn.Module:
    """The head of a causal LM: its output embedding, with the scale and the cap of its config.

    Args:
        lm: The causal LM.

    Returns:
        The output embedding itself where the configuration declares neither.
    """
    embedding = lm.get_output_embeddings()
    config = text_config(lm)
    factor = 1.0
    for name in (*FACTORS, DIVISOR):
        if value := getattr(config, name, None):
            divides = name == DIVISOR and config.model_type not in MULTIPLYING
            factor *= 1 / value if divides else value
    cap = next((c for name in CAPS if (c := getattr(config, name, None))), None)
    return embedding if factor == 1.0 and cap is None else ScaledHead(embedding, factor, cap)


@contextmanager
def derivative_of_scores(model: nn.Module) -> Generator[None]:
    """In this block reverse mode too differentiates by the padding rows.

    Args:
        model: The model; its embeddings are as before after the block.

    Yields:
        Nothing.
    """
    padded = {x: x.padding_idx for x in model.modules() if isinstance(x, nn.Embedding)}
    try:
        for module in padded:
            module.padding_idx = None
        yield
    finally:
        for module, row in padded.items():
            module.padding_idx = row


class DerivativeOfTraining(TorchFunctionMode):
    """In this block forward mode too omits the lookup of padding rows."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return _constant_row(out, *args, **(kwargs or {})) if func is F.embedding else out


def _constant_row(
    out: Tensor, input: Tensor, weight: Tensor, padding_idx: int | None = None, *_: Any, **__: Any
) -> Tensor:
    """What a lookup gives, without a derivative where it is the padding row."""
    if padding_idx is None:
        return out
    return torch.where((input == padding_idx % len(weight))[..., None], out.detach(), out)
