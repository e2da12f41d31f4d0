"""The application that `main` fills; help is plain text, which needs no rich."""

from __future__ import annotations

from dataclasses import dataclass

import typer
from typer.core import TyperGroup, TyperOption


@dataclass
class Settings:
    """Options that come before a verb.

    Attributes:
        traceback: Print the traceback of every error.
    """

    traceback: bool = False


settings = Settings()


class Verbs(TyperGroup):
    """Verbs whose `--help` is False where it is not given; Typer loads pydantic to convert None."""

    def get_help_option(self, ctx: typer.Context) -> TyperOption | None:  # type: ignore[override]
        """The option of before, with a default."""
        option = super().get_help_option(ctx)  # type: ignore[arg-type]
        if option is not None:
            option.default = False
        return option


app = typer.Typer(
    cls=Verbs,
    help="How much one optimizer step changes the entropy of a language-model policy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
config_app = typer.Typer(
    cls=Verbs, help="Show or check settings.", no_args_is_help=True, rich_markup_mode=None
)
