"""The command line as `python -m isentrope`, which is how torchrun starts it."""

from isentrope.cli.main import app

if __name__ == "__main__":
    app()
