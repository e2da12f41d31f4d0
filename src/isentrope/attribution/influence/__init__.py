"""Influence: how much of δH₁ each sequence and token of an update batch causes (T6)."""
