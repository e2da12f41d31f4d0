"""Noise scales: the number of prompts that a step needs, for the loss and for the entropy (T8)."""
