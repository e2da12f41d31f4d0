"""The checkpoint that is read and measured."""

from tests.tiny_checkpoint import tiny  # noqa: F401
