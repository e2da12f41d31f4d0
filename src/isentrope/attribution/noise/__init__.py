"""Noise scales: how many prompts a step needs, for the loss and for the entropy (T8)."""
