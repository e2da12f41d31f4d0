"""Gives every Python process the second device, before it imports torch (see `launch.py`)."""

import ctypes
import os
import types


def functions(ops, total):
    """What torch.cuda asks of a driver, answered by the second device, by name."""
    import torch

    def index(device=None):
        i = device if isinstance(device, int) or device is None else torch.device(device).index
        return ops.current() if i is None or i < 0 else i

    def held(device=None):
        return ops.held(index(device))

    def peak(device=None):
        return ops.peak(index(device))

    properties = types.SimpleNamespace(
        name="Second device",
        major=9,
        minor=0,
        total_memory=total(0),
        multi_processor_count=1,
        warp_size=32,
        is_integrated=False,
        gcnArchName="",
    )
    return {
        "get_device_properties": lambda device=None: properties,
        "get_device_name": lambda device=None: properties.name,
        "get_device_capability": lambda device=None: (9, 0),
        "is_bf16_supported": lambda *_, **__: True,
        "mem_get_info": lambda device=None: (
            total(index(device)) - held(device),
            total(index(device)),
        ),
        "memory_allocated": held,
        "memory_reserved": held,
        "max_memory_allocated": peak,
        "max_memory_reserved": peak,
        "reset_peak_memory_stats": lambda device=None: ops.forget_peak(index(device)),
        "memory_stats": lambda device=None: {},
        "empty_cache": nothing,
        "synchronize": nothing,
        "ipc_collect": nothing,
        "is_current_stream_capturing": lambda: False,
        "Stream": Stream,
        "Event": Stream,
        "current_stream": Stream,
        "default_stream": Stream,
        "stream": Stream,
        "set_stream": nothing,
    }


def nothing(*_, **__):
    """What has no effect on a device that never lags behind."""


class Stream:
    """A stream or an event; all work is done when it is asked for."""

    cuda_stream = 0

    def __init__(self, *_, **__):
        self.record = self.wait = self.synchronize = nothing
        self.wait_stream = self.wait_event = self.record_event = nothing

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def query(self):
        return True

    def elapsed_time(self, *_):
        return 0.0


def internals(ops):
    """Functions that a build for the CPU lacks in torch._C, by name."""

    def use(i):
        if i >= visible():
            raise RuntimeError("CUDA error: invalid device ordinal")
        ops.use(i)

    def exchange(i):
        before = ops.current()
        ops.use(i)
        return before

    return {
        "init": nothing,
        "getDeviceCount": visible,
        "getDevice": ops.current,
        "setDevice": use,
        "exchangeDevice": exchange,
        "maybeExchangeDevice": exchange,
        "synchronize": nothing,
        "emptyCache": nothing,
        "ipc_collect": nothing,
        "isInBadFork": lambda: False,
        "getArchFlags": lambda: "sm_90",
        "getCompiledVersion": lambda: 12080,
        "getCurrentRawStream": lambda i=0: 0,
        "resetPeakMemoryStats": nothing,
    }


def visible():
    return int(os.environ.get("SECOND_DEVICES", "1"))


def install(library):
    ctypes.CDLL(library, ctypes.RTLD_GLOBAL)  # before torch, which takes its hooks at import
    import torch

    ops, cuda = torch.ops.second_device, torch.cuda
    limits = dict.fromkeys(range(2), 8 << 30)

    def limit(bytes, i=0):
        limits[i] = bytes or 8 << 30
        ops.limit(i, bytes)

    ops.limit_memory = limit
    own = internals(ops)
    for name, function in own.items():
        setattr(torch._C, f"_cuda_{name}", function)
    cuda._exchange_device = cuda._maybe_exchange_device = own["exchangeDevice"]
    cuda._initialized, cuda._cudart, cuda._queued_calls = True, object(), []
    cuda.default_generators = (ops.generator(0), ops.generator(1))
    cuda._is_in_bad_fork = own["isInBadFork"]
    for name, function in functions(ops, limits.__getitem__).items():
        setattr(cuda, name, function)
        if hasattr(cuda.memory, name):
            setattr(cuda.memory, name, function)
    cuda.device_count, torch.backends.cuda.is_built = visible, lambda: True

    def restore(storage, location):  # a storage of a CPU build knows no cuda
        if not location.startswith("cuda"):
            return None
        there = torch.empty(storage.nbytes(), dtype=torch.uint8, device=location).untyped_storage()
        there.copy_(storage)
        return there

    torch.serialization.register_package(5, lambda storage: None, restore)


if "SECOND_DEVICE" in os.environ:
    install(os.environ["SECOND_DEVICE"])
