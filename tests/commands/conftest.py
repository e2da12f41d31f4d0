from tests.tiny_checkpoint import tiny

__all__ = ["tiny"]
