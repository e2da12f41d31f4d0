"""Training: Dr. GRPO and supervised fine-tuning on TRL, with checkpoints that can be measured."""
