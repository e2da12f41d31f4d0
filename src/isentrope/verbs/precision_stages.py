"""One policy, several precisions: each stage has its own, θ loses nothing in between (T13)."""

from collections.abc import Iterator
from contextlib import contextmanager

from isentrope.models.precision import Precision
from isentrope.models.sharding import exchange_as_stored, put_back
from isentrope.policy.language_model import Policy


@contextmanager
def at_precision(policy: Policy, precision: str | Precision) -> Iterator[Policy]:
    """Run a block at another precision, then restore every weight and buffer exactly.

    The tensors of before are kept, not recomputed, so a shorter type in between costs nothing but
    the memory of both.

    Args:
        policy: The policy.
        precision: Precision of the block.

    Yields:
        The policy itself, converted.
    """
    before = policy.precision
    parameters = [(p, p.detach()) for p in policy.model.parameters() if p.is_floating_point()]
    buffers = [
        (module._buffers, name, buffer)
        for module in policy.model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and buffer.is_floating_point()
    ]
    try:
        yield policy.convert(precision)
    finally:
        for parameter, data in parameters:
            put_back(parameter, data)
        for owner, name, buffer in buffers:
            owner[name] = buffer
        exchange_as_stored(policy.model)
        policy.precision = before
