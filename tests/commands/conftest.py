from tests.tiny_checkpoint import own, recorded, tiny

__all__ = ["own", "recorded", "tiny"]
