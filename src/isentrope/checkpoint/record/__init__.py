"""Records that training writes beside a checkpoint, from which its step can be replayed."""
