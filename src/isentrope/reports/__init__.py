"""Figures and reports of what was measured; no numbers of their own."""
