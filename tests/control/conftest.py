"""The small policy of training."""

from tests.training.conftest import no_model_cards, policy, task

__all__ = ["no_model_cards", "policy", "task"]
