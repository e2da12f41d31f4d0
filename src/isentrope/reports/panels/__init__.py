"""The panels of a report, one file per panel."""
