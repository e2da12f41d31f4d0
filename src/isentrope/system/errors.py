"""The errors that isentrope raises about what it was given; any other error is a fault of its own.

They are printed as one sentence that names the file or the setting and says what to do.
"""

from __future__ import annotations

from pathlib import Path


class IsentropeError(Exception):
    """What was given cannot be used; the message says why, and what to do."""


class FileError(IsentropeError, ValueError):
    """A file that is damaged, was changed, or holds something other than it should.

    Attributes:
        path: The file or the folder.
    """

    def __init__(self, path: str | Path, message: str) -> None:
        super().__init__(message)
        self.path = Path(path)

    def __reduce__(self) -> tuple[type[FileError], tuple[Path, str]]:
        return type(self), (self.path, str(self))
