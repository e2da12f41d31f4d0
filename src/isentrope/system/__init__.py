"""Files, processes, progress and text: what knows nothing of a policy."""
