"""Influence: the part of δH₁ that each sequence and token of an update batch causes (T6)."""
