"""Hooks that never end a training run: the first error switches their observer off.

One error must end it: that of a single process in a pass that all share. The others wait in the
exchange of a layer, and would take for it what this process exchanges next, in the trainer's pass.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from isentrope.models.architecture import UnsupportedModelError
from isentrope.policy.derivative_guard import DerivativeError
from isentrope.policy.token_statistics import NotFiniteError
from isentrope.system.log import log
from isentrope.system.processes import together

Hook = Callable[..., None]
_T = TypeVar("_T")
ALIKE = (UnsupportedModelError, DerivativeError, NotFiniteError)
"""Errors of a model, or of numbers that all processes have."""


class SharedPassError(RuntimeError):
    """A pass that several processes share has failed on this one."""


def never_raising(hook: Hook) -> Hook:
    """A hook that switches its observer off at its first error, by `switch_off(step, error)`."""

    @wraps(hook)
    def guarded(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.off:
            return
        try:
            hook(self, args, state, control, **kwargs)
        except SharedPassError:
            raise
        except Exception as error:  # a reading must not end a training run, whatever fails in it
            self.off = True
            try:
                self.switch_off(state.global_step + 1, error)
            except Exception:  # even what is said of the first error
                log.warning("An observer of training is off; training continues.", exc_info=True)

    return guarded


def on_every_process(shared: bool, work: Callable[[], _T]) -> _T:
    """Run passes of a policy: this process's own, or those that it shares with all others.

    Args:
        shared: Whether all processes take part in each pass.
        work: Called once on every process.

    Returns:
        What `work` returned on this process.

    Raises:
        Exception: What `work` raised, or `OtherProcessError`, where each runs passes of its own;
            of a shared pass, what all processes raise alike.
        SharedPassError: If a shared pass failed here for another cause.
    """
    if not shared:
        return together(work)
    try:
        return work()
    except ALIKE:
        raise
    except Exception as error:  # this process has left the pass, whatever the reason
        raise SharedPassError(
            f"The entropy probe failed in a pass that all processes share, so training ends: "
            f"{error} Go on without it: isentrope train --from RUN/training_state/step_N --out NEW "
            "--set entropy_probe.enabled=false."
        ) from error
