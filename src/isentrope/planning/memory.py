"""Bytes by shapes alone: weights, gradients, moments, tangents, logits, cache and activations.

N parameters, d of them trainable. Activations are those of a micro-batch that is passed through the
decoder on the device meta, which computes nothing: the tensors that are alive at once are counted.
Attention keeps its scores there, as it does not on a GPU, so it is about the most.
"""

import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from isentrope.attribution.gradients.storage_plan import Storage, plan_storage
from isentrope.models.architecture import text_config
from isentrope.models.precision import Precision
from isentrope.policy.derivative_guard import bytes_to_compare


class Alive(TorchDispatchMode):
    """Counts the storages that operations make and free on one kind of device.

    What a kernel allocates inside is not seen, nor free blocks that an allocator keeps.

    Attributes:
        now: Bytes alive.
        peak: The most at once since it was last set.
    """

    def __init__(self, device: str, present: Iterable[Tensor]) -> None:
        """Begin with tensors that are there.

        Args:
            device: "cpu", "cuda" or "meta".
            present: Tensors that count as long as they live.
        """
        super().__init__()
        self._device = device
        self._sizes = dict[int, int]()
        self._freed = dict[int, weakref.ref[Any]]()
        self.now = self.peak = 0
        for x in present:
            self._add(x)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and hiding every call from a compiler takes as long as it."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs) if kwargs else func(*args)
        for x in (out,) if isinstance(out, Tensor) else tree_leaves(out):
            if isinstance(x, Tensor):
                self._add(x)
        return out

    def _add(self, x: Tensor) -> None:
        storage = x.untyped_storage()
        key = storage._cdata
        if key in self._sizes or x.device.type != self._device:
            return
        self._sizes[key] = storage.nbytes()
        self.now += self._sizes[key]
        self.peak = max(self.peak, self.now)
        self._freed[key] = weakref.ref(storage, partial(self._remove, key))

    def _remove(self, key: int, _: Any) -> None:
        del self._freed[key]
        self.now -= self._sizes.pop(key)


STEP_VECTORS = 5
"""v, P, and the components momentum, decay and gradient; computing them takes as much: twice two
moments of Adam, and the gradient."""

SIZES = {"float64": 8, "float32": 4, "bfloat16": 2}
"""Bytes of a number."""


def trainable_parameters(model: Any) -> int:
    """The number d of parameters that are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def weights_held(model: Any, precision: Precision) -> dict[str, int]:
    """Bytes of the weights in float32, and of those in the type of the measurement beside them."""
    n = sum(p.numel() for p in model.parameters())
    kind = precision.runtime_dtype
    size = SIZES.get(kind, 4)
    copies = {f"weights in {kind}": size * n} if size != 4 else {}
    return {"weights": 4 * n} | copies


def held(
    model: Any,
    precision: Precision,
    storage: Storage,
    groups: int = 0,
    sides: Sequence[tuple[int, int | None]] = (),
) -> dict[str, int]:
    """What a measuring verb holds at once without any pass, where it is most.

    Args:
        model: The checkpoint's, from `meta_model`.
        precision: Precision of the measurement.
        storage: How gradients are stored.
        groups: Number of gradients of error groups that are held.
        sides: Rows of the left and right side of each block of a kernel; None: with itself.

    Returns:
        Bytes by what they are.
    """
    d = trainable_parameters(model)
    size = SIZES.get(precision.runtime_dtype, 4)
    terms = weights_held(model, precision) | {"step": STEP_VECTORS * 8 * d}
    if storage.where != "disk":
        blocks = [plan_storage(*rows, d, size, storage) for rows in sides]
        terms["stored gradient groups"] = groups * max(4, size) * d
        terms["stored gradients"] = max((block.held_bytes for block in blocks), default=0)
    return {name: term for name, term in terms.items() if term}


def held_to_compare(model: Any, free: int, order: int) -> dict[str, int]:
    """What comparing derivatives with differences holds.

    Args:
        model: The checkpoint's, in the type of the measurement.
        free: Bytes that are free beside the weights.
        order: Of the derivatives.

    Returns:
        Bytes by what they are; none of a copy where there is no room for it.
    """
    copied, moving = bytes_to_compare(model, free, order)
    return {"moved parameters": moving} | ({"weights in float64": copied} if copied else {})


def held_in_training(model: Any, reference: bool = False) -> dict[str, int]:
    """What is held from one step to the next and in its gradient.

    Args:
        model: On any device, with its trainable set.
        reference: Whether TRL keeps a copy of that set, as it does with trainer.beta.

    Returns:
        Bytes by what they are; Adam has two moments.
    """
    gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    weights = sum(p.nbytes for p in model.parameters())
    terms = {"weights": weights, "gradients": gradients, "moments of Adam": 2 * gradients}
    return terms | ({"reference": gradients} if reference else {})


def language_model(model: Any) -> Any:
    """The causal language model below an adapter, or the model itself."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


def activation_bytes(model: Any, sequences: int, length: int, *, backward: bool = True) -> int:
    """The most that a pass of a micro-batch through the decoder holds above its weights.

    Args:
        model: On the device meta; an adapter over a causal language model, or one.
        sequences: Sequences of the micro-batch.
        length: Tokens of each, prompt and response.
        backward: Whether a backward pass follows, for which all layers keep their inputs.

    Returns:
        Bytes, in the type of the weights, without gradients of the weights.
    """
    decoder = language_model(model).base_model
    alive = Alive("meta", [*model.parameters(), *model.buffers()])
    with torch.device("meta"), alive, torch.set_grad_enabled(backward):
        ids = torch.zeros(sequences, length, dtype=torch.long)
        mask = torch.ones(sequences, 1, length, length, dtype=torch.bool)  # no value is read of it
        before = alive.now
        hidden = decoder(input_ids=ids, attention_mask=mask, use_cache=False)[0]
        if not backward:
            return alive.peak - before
        hidden.sum().backward()
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    model.zero_grad()
    return alive.peak - before - gradients


TILE = (4096, 32_768)
"""Tokens and vocabulary of TRL's tiles of logits; a test reads them there."""

FOLDED = 7.5
"""Arrays of a tile's logits beside it where TRL folds it without a Triton kernel."""


def training_logits(model: Any, tokens: int, device: str) -> int:
    """Bytes of the tile of logits that TRL holds of so many tokens, in float32.

    Args:
        model: The model.
        tokens: Tokens of a micro-batch.
        device: A card's kernel folds a tile in place; on a CPU torch's own operations do.

    Returns:
        Bytes.
    """
    vocabulary = text_config(language_model(model)).vocab_size
    rows = min(tokens, TILE[0])
    beside = FOLDED * min(vocabulary, TILE[1]) if device == "cpu" else 0
    return int(4 * rows * (TILE[1] + beside))


def autocast_copies(model: Any) -> int:
    """Bytes of the bfloat16 copies of float32 weights that a backward pass under autocast keeps."""
    return sum(2 * p.numel() for p in model.parameters() if p.dtype == torch.float32)
