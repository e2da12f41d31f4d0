"""The command line, called in the process of the test."""

from typer.testing import CliRunner

from isentrope.cli.main import app


def call(*words, status=None, **options):
    """What a command printed and how it ended, which must be as stated."""
    done = CliRunner().invoke(app, [str(word) for word in words], **options)
    assert status in (None, done.exit_code), done.output
    return done


def said(done):
    """All that was printed, on one line and without the frames of boxes."""
    return " ".join(done.output.replace("│", " ").split())
