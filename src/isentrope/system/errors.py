"""The errors that isentrope raises about what it was given; any other error is a fault of its own.

They are printed as one sentence that names the file or the setting and says what to do.
"""


class IsentropeError(Exception):
    """What was given cannot be used; the message says why, and what to do."""


class FileError(IsentropeError, ValueError):
    """A file that is damaged, was changed, or holds something other than it should."""
