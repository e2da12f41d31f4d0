"""Entropy, its change along a direction, its gradient, and their errors (T1)-(T4), (T11)."""
