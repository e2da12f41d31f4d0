"""Training: the toy policy, its fine-tuning, and the reference loop that makes checkpoints."""
