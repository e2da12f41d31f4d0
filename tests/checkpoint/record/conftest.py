"""What trains here writes no model card."""

from tests.training.conftest import no_model_cards

__all__ = ["no_model_cards"]
