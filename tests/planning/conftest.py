"""The tiny checkpoint for plans."""

from tests.tiny_checkpoint import tiny  # noqa: F401
