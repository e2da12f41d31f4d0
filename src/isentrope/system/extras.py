"""Packages that isentrope works without, each with the extra that installs it."""

from importlib.util import find_spec

from isentrope.system.errors import IsentropeError

EXTRAS = {
    "bitsandbytes": "quantized",
    "datasets": "gsm8k",
    "gguf": "smollm2",
    "tensorboard": "train",
    "trl": "train",
}
"""The extra of pyproject.toml by the package that is imported."""


class MissingPackageError(IsentropeError, ImportError):
    """A package is not installed; the message says by what it is."""

    def __init__(self, package: str, user: str) -> None:
        """Name the package and its extra.

        Args:
            package: Its name in `EXTRAS`.
            user: What needs it.
        """
        install = f"pip install 'isentrope[{EXTRAS[package]}]'"
        super().__init__(f"{user} needs {package}, which is not installed: {install}.")


def require_packages(packages: tuple[str, ...], user: str) -> None:
    """Refuse to begin where a package is not installed; nothing is imported.

    Args:
        packages: Names in `EXTRAS`.
        user: What needs them.

    Raises:
        MissingPackageError: Of the first that is missing.
    """
    for package in packages:
        if find_spec(package) is None:
            raise MissingPackageError(package, user)
