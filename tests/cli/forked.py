"""Calls of the command line, each in a fork of one interpreter that holds little.

A fork ends with the modules that a fresh process would end with, and saves the second of its start.
"""

import json
import os
import subprocess
import sys

FORKING = """
import contextlib, importlib, io, json, os, sys
from isentrope.cli.main import app

for module in sys.argv[1:]:
    importlib.import_module(module)

for arguments, environment in json.load(sys.stdin):
    sys.stdout.flush()
    if os.fork():
        os.wait()
        continue
    os.environ.update(environment)
    sys.argv[1:] = arguments
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        try:
            app(prog_name="isentrope")
        except SystemExit as end:
            status = end.code or 0
    found = {"status": status, "printed": printed.getvalue(), "errors": errors.getvalue()}
    print(json.dumps(found | {"modules": list(sys.modules)}))
    sys.exit()
"""


def call_each(calls, folder=None, held=()):
    """Status, what was printed on both streams, and modules at the end, of each call.

    Args:
        calls: (arguments, environment) of each.
        folder: Where the calls are made.
        held: Modules that all of them load, and that are loaded once.
    """
    done = subprocess.run(
        [sys.executable, "-c", FORKING, *held],
        input=json.dumps(calls), capture_output=True, text=True, cwd=folder, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
