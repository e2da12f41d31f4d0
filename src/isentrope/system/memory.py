"""The memory of the device that a model is on, or is to be on."""

import os

import psutil
import torch

_FULL = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
)
"""What torch says where memory is full and the error has no class of its own."""


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is full, the host's or a device's."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _FULL)
    )


def give_back() -> None:
    """Give a device's free blocks back, so that the next ones may be of other sizes."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def require_device(device: str) -> None:
    """Refuse a CUDA device that is not there, before the driver is asked for it.

    Args:
        device: cpu, cuda or cuda:N.

    Raises:
        ValueError: If torch sees no such device.
    """
    kind, _, index = device.partition(":")
    there = torch.cuda.device_count()
    if kind == "cuda" and int(index or 0) >= there:
        raise ValueError(
            f"checkpoint.device_map={device}, but torch sees {there or 'no'} CUDA device here."
        )


def free_memory(device: str | torch.device) -> int:
    """Bytes that are free on a device; processes of torchrun share those of a CPU.

    Args:
        device: The CPU, or a CUDA device, of which no other is touched.

    Returns:
        Bytes.
    """
    if torch.device(device).type == "cuda":
        require_device(str(device))
        return int(torch.cuda.mem_get_info(device)[0])
    return psutil.virtual_memory().available // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
