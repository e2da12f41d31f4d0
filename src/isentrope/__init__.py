"""isentrope: how far, and why, one optimizer step moves the entropy of a language-model policy."""

__version__ = "0.1.0"
