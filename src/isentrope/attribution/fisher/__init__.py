"""The Fisher kernel: its entries, structure, spectrum, clusters and truncations (T7)."""
