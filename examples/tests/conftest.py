"""The small policy that training's tests share."""

from tests.training.conftest import policy, task

__all__ = ["policy", "task"]
