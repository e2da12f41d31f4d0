"""The online probe: what a training step does to entropy, predicted and measured."""
