"""The version of isentrope, which nothing has to be imported for."""

__version__ = "0.1.0"
