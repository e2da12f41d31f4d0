"""Configurations: typed sections, read from YAML and command line, checked and written."""
