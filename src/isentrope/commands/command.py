"""A verb of the command line: its fields are its options, its docstring is its help.

    name, kept, room, packages    what the command line knows of it
    read()              refuses what it is given, before anything heavy is imported
    run()               does the work, and returns its outcome
    shown(outcome)      what is printed of it: sentences, tables, lines and conclusions
    failures(outcome)   sentences with which it ends with status 1

Options that several verbs have are dataclasses of their own, from which verbs inherit. The help
lists them in the order of the bases.

`--help` imports these modules, so nothing heavy is imported here: `run` and `shown` import what
they work with, and what `read` imports is light.
"""

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from inspect import Parameter, Signature, get_annotations
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args

from typer import Argument, Option

from isentrope.commands.completion import complete_setting
from isentrope.system.extras import EXTRAS, MissingPackageError
from isentrope.system.file_contents import yaml_value

_KEY = re.compile(r"\b[a-z_]+(?:\.[A-Za-z_]+)+")
"""What may be the dotted key of a setting, or the name of a file."""
_IS_ARGUMENT = "checkpoint.checkpoint_path"
"""The setting that a verb on a folder takes by its argument."""


@dataclass(frozen=True)
class Conclusion:
    """A line that is on the first screen, however long the rest is.

    Attributes:
        text: The line.
        folder: The folder that was written, if `isentrope show` prints it.
    """

    text: str
    folder: Path | None = None


@dataclass(frozen=True)
class Sets:
    """The setting that an option sets.

    Attributes:
        key: Its dotted key.
        names: Whether the option is a list of names with commas, where "all" is the setting's null.
    """

    key: str
    names: bool = False


@dataclass(frozen=True, kw_only=True)
class Command:
    """What all verbs have.

    Attributes:
        name: As on the command line, and in names of folders.
        kept: What a signal leaves of its work, and how to go on.
        room: Lines of results on its first screen, besides conclusions.
        packages: What it cannot work without, of the packages of extras.
        details: Whether everything is printed.
    """

    name: ClassVar[str]
    kept: ClassVar[str] = "Nothing is kept of what was not finished: run the same command again."
    room: ClassVar[int] = 21
    packages: ClassVar[tuple[str, ...]] = ()

    details: Annotated[
        bool, Option("--details", help="Print everything, and not the first screen of it.")
    ] = False

    def read(self) -> None:
        """Refuse names, keys, values and paths before the libraries of the work are imported."""

    def run(self) -> Any:
        """Do the work.

        Returns:
            The outcome.
        """
        raise NotImplementedError

    def shown(self, outcome: Any) -> Iterable[Any]:
        """What is printed: sentences, tables, texts and conclusions."""
        raise NotImplementedError

    def failures(self, outcome: Any) -> Sequence[str]:
        """Sentences with which the verb ends with status 1; none where it succeeded."""
        return ()

    @classmethod
    def sentence_of(cls, error: BaseException) -> str:
        """What is printed of an error that a user can mend, in one line."""
        if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
            error = MissingPackageError(error.name, f"isentrope {cls.name}")
        if isinstance(error, OSError) and error.errno and str(error).startswith("[Errno"):
            words = error.strerror or os.strerror(error.errno)
            if error.filename is None:
                return f"{cls.name} could not read or write: {words}."
            target = f" (to {error.filename2})" if error.filename2 else ""
            return f"{error.filename}{target}: {words}."
        return " ".join(str(error).split()) or f"{cls.name} failed by {type(error).__name__}."

    @property
    def overrides(self) -> list[str]:
        """The settings that options set, "section.key=value"."""
        overrides: list[str] = [*(getattr(self, "settings", None) or ())]
        for option in fields(self):
            value = getattr(self, option.name)
            if value in (None, []):
                continue
            for part in get_args(option.type):
                if isinstance(part, Sets):
                    setting = value
                    if part.names:
                        setting = None if value == "all" else value.split(",")
                    overrides.append(f"{part.key}={yaml_value(setting)}")
        return overrides


def options_of(kind: type[Command]) -> list[Parameter]:
    """The options of a verb as parameters: its own first, then those of its bases in order."""
    by_name = {field.name: field for field in fields(kind)}
    names = dict.fromkeys(name for base in kind.__mro__ for name in get_annotations(base))
    return [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=field.type,
        )
        for name in names
        if (field := by_name.get(name)) is not None
    ]


def signature_of(kind: type[Command]) -> Signature:
    """The options of a verb as the signature that Typer reads."""
    return Signature(options_of(kind))


def command_line(*words: Any) -> str:
    """A command to copy into a shell."""
    return shlex.join(["isentrope", *map(str, words)])


@dataclass(frozen=True, kw_only=True)
class AsJson(Command):
    """A verb whose outcome is printed as JSON too."""

    as_json: Annotated[
        bool, Option("--json", help="Print JSON; other lines go to standard error.")
    ] = False

    def document(self, outcome: Any) -> Any:
        """What is printed: the content of a file, or a list where there are several."""
        documents = self.documents(outcome)
        return documents[0] if len(documents) == 1 else documents

    def documents(self, outcome: Any) -> list[Any]:
        """The outcome as JSON has it: objects by key, lists, texts, numbers and null."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Reader(Command):
    """A verb that reads a configuration."""

    @cached_property
    def configuration(self) -> Any:
        """The configuration; `read` and `run` share what was read once."""
        return self.read_configuration()

    def read_configuration(self) -> Any:
        """Read the configuration, with its overrides."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Configured(Reader):
    """A verb that needs a configuration."""

    config: Annotated[str, Argument(metavar="CONFIG", help="A YAML file of settings.")]

    def read(self) -> None:
        """Read the configuration, and look for the files that it names."""
        from isentrope.checkpoint.folders import require_present

        require_present(self.configuration)

    def read_configuration(self) -> Any:
        """The configuration with its overrides, of whatever kind it is."""
        from isentrope.config.io import load_any

        return load_any(self.config, self.overrides)


@dataclass(frozen=True, kw_only=True)
class Overridden(Command):
    """A verb whose settings can be overridden."""

    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Override a setting; repeatable.",
            autocompletion=complete_setting,
        ),
    ] = None

    @classmethod
    def sentence_of(cls, error: BaseException) -> str:
        """The sentence, and how a setting that it names by its key is given."""
        from isentrope.config.io import KINDS
        from isentrope.config.keys import all_keys
        from isentrope.config.strict_yaml import ConfigError

        sentence = super().sentence_of(error)
        if "--set" in sentence or isinstance(error, ConfigError):
            return sentence  # who wrote a wrong setting knows how one is given
        kinds = [KINDS[cls.name]] if cls.name in KINDS else KINDS.values()
        settings = {key for kind in kinds for key in all_keys(kind)} - {_IS_ARGUMENT}
        for key in _KEY.findall(sentence):
            above = key.rpartition(".")[0]  # of a value that has keys of its own
            if key in settings or ("." in above and above in settings):
                return f"{sentence} Here settings are given as --set {key}=VALUE."
        return sentence


@dataclass(frozen=True, kw_only=True)
class Verified(Command):
    """A verb that reads files with manifests."""

    no_verify: Annotated[
        bool,
        Option("--no-verify", help="Read files that were changed after they were written."),
    ] = False


@dataclass(frozen=True, kw_only=True)
class InFolder(Command):
    """A verb that writes a run folder."""

    folder: Annotated[
        str | None,
        Option("--out", metavar="FOLDER", help="Run folder (output.directory)."),
        Sets("output.directory"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Changeable(Overridden, InFolder, Verified):
    """A verb whose settings and run folder can be chosen."""
