"""Bytes of the tensors that are alive at once, and what a training holds by shapes alone.

Weights, gradients, moments and a cache are counted from shapes. A micro-batch is passed through the
decoder on the device meta, which computes nothing, and the tensors that are alive at once are
counted, in the type of the weights. Under bf16 they are smaller, but weights are copied; attention
keeps no scores on a GPU. So it is about the most. Logits are held in tiles by TRL.
"""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from isentrope.models.architecture import text_config
from isentrope.planning.plan import DoesNotFitError
from isentrope.system.formatting import gigabytes, sizes_in_words
from isentrope.system.memory import free_memory
from isentrope.system.progress import Clock


class Alive(TorchDispatchMode):
    """Counts the storages that operations make and free on one kind of device.

    What a kernel allocates inside is not seen, nor free blocks that an allocator keeps.

    Attributes:
        now: Bytes alive.
        peak: The most at once since it was last set.
    """

    def __init__(self, device: str, known: Iterable[Tensor]) -> None:
        """Begin with tensors that are there.

        Args:
            device: "cpu" or "cuda".
            known: They count as long as they live.
        """
        super().__init__()
        self._device, self._sizes = device, dict[int, int]()
        self._freed = dict[int, weakref.ref[Any]]()
        self.now = self.peak = 0
        for x in known:
            self._add(x)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and hiding every call from a compiler takes as long as it."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs) if kwargs else func(*args)
        if isinstance(out, Tensor):
            self._add(out)
        elif isinstance(out, tuple | list):
            for x in tree_leaves(out):
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


class Meter(Clock):
    """A clock that reads the gauge in each stage too.

    Attributes:
        peaks: Bytes at once, by stage.
    """

    def __init__(self, alive: Alive) -> None:
        """Begin at 0 seconds."""
        super().__init__()
        self.peaks: dict[str, int] = {}
        self._alive = alive

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a block, and note the most bytes in it."""
        before, self._alive.peak = self._alive.peak, self._alive.now
        try:
            with super().stage(name):
                yield
        finally:
            self.peaks[name] = max(self.peaks.get(name, 0), self._alive.peak)
            self._alive.peak = max(before, self._alive.peak)  # of a stage around this one


TILE = (4096, 32_768)
"""Tokens and vocabulary of TRL's tiles of logits; a test reads them there."""

COPIES = 3
"""Of a tile at once in float32."""


def held_in_training(model: Any, reference: bool = False) -> dict[str, int]:
    """What is held from one step to the next and in its gradient.

    Args:
        model: On any device, with its trainable set.
        reference: Whether TRL keeps a copy of that set, as it does with trainer.beta.

    Returns:
        Bytes by what they are; Adam has two moments.
    """
    moved = [p for p in model.parameters() if p.requires_grad]
    gradients = sum(p.nbytes for p in moved)
    weights = sum(p.nbytes for p in model.parameters())
    terms = {"weights": weights, "gradients": gradients, "moments of Adam": 2 * gradients}
    return terms | ({"reference": gradients} if reference else {})


def require_room_to_train(model: Any, device: str | torch.device) -> None:
    """Refuse a training whose weights, gradients and moments are more than the free memory.

    Args:
        model: With its trainable set, on the CPU.
        device: Where it is to be trained.

    Raises:
        DoesNotFitError: Before any work.
    """
    terms = held_in_training(model)
    if torch.device(device).type == "cpu":
        del terms["weights"]  # they are there
    needed, free = sum(terms.values()), free_memory(device)
    if needed > free:
        raise DoesNotFitError(
            f"The training does not fit: it holds {gigabytes(needed)} at least "
            f"({sizes_in_words(terms)}), and {gigabytes(free)} are free on {device}. "
            "isentrope plan says what else it takes."
        )


def pass_bytes(
    model: Any, sequences: int, length: int, checkpointing: bool, bf16: bool = False
) -> int:
    """The most that forward and backward pass of a micro-batch hold above weights and gradients.

    Args:
        model: On the device meta; an adapter over a causal language model, or one.
        sequences: Of the micro-batch.
        length: Tokens of each, prompt and response.
        checkpointing: Whether only the inputs of layers are kept.
        bf16: Whether products are in bfloat16; copies of float32 weights are then kept for the
            backward pass.

    Returns:
        Bytes.
    """
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    language_model = model.get_base_model() if hasattr(model, "peft_config") else model
    alive = Alive("meta", [*model.parameters(), *model.buffers()])
    with torch.device("meta"), alive:
        ids = torch.zeros(sequences, length, dtype=torch.long)
        mask = torch.ones(sequences, 1, length, length, dtype=torch.bool)  # no value is read of it
        before = alive.now
        hidden = language_model.base_model(input_ids=ids, attention_mask=mask, use_cache=False)[0]
        hidden.sum().backward()
        gradients = sum(p.nbytes for p in model.parameters() if p.grad is not None)
    tile = min(sequences * length, TILE[0]) * min(text_config(language_model).vocab_size, TILE[1])
    copied = bf16 and not checkpointing
    copies = sum(2 * p.numel() for p in model.parameters() if copied and p.dtype == torch.float32)
    return alive.peak - before - gradients + copies + COPIES * 4 * tile


def cache_bytes(config: Any, sequences: int, length: int, size: int) -> int:
    """Keys and values of sequences that are sampled at a time, and their next logits.

    Args:
        config: Of the model.
        sequences: At a time.
        length: Tokens of each at the end.
        size: Bytes of a number.

    Returns:
        Bytes; logits are held in float32 and float64, with a cumulative sum.
    """
    config = config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    keys = 2 * config.num_hidden_layers * (getattr(config, "num_key_value_heads", None) or heads)
    return sequences * (keys * width * length * size + 28 * config.vocab_size)
