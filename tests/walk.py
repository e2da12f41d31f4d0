"""Functions of the library that one command enters: python -m tests.walk measure CONFIG …

Prints, as JSON, how many functions are entered, in which files, how many of them before weights are
loaded, and how often a result is read from disk. Function bodies alone: class bodies, lambdas,
comprehensions and generated methods are not counted. (Python 3.11 runs a comprehension as a call,
later versions do not.)
"""

import json
import os
import sys
from inspect import CO_OPTIMIZED

import isentrope

ROOT = os.path.dirname(isentrope.__file__)


class Walk:
    """What a profile of the interpreter has seen.

    Attributes:
        entered: (file, function) of every function of the library.
        before_weights: How many there were when the first model was loaded; None before it.
        results_read: Calls of `Result.load`.
    """

    def __init__(self):
        self.entered = set()
        self.before_weights = None
        self.results_read = 0

    def __call__(self, frame, event, argument):
        """Look at an event of the interpreter."""
        code = frame.f_code
        if event != "call":
            return
        if self.before_weights is None and code.co_qualname == "PreTrainedModel.from_pretrained":
            self.before_weights = len(self.entered)
        is_function = code.co_flags & CO_OPTIMIZED and not code.co_name.startswith("<")
        if is_function and code.co_filename.startswith(ROOT):
            self.entered.add((code.co_filename, code.co_qualname))
            self.results_read += code.co_qualname == "Result.load"


def main():
    """Run the command and print what it entered."""
    import pandas  # noqa: F401  what takes long to import is not looked at
    import peft  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401

    from isentrope.cli.main import app

    walk = Walk()
    sys.argv = ["isentrope", *sys.argv[1:]]
    status = None
    sys.setprofile(walk)
    try:
        app()
    except SystemExit as end:
        status = end.code
    finally:
        sys.setprofile(None)
    counts = {
        "status": status,
        "functions": len(walk.entered),
        "files": sorted({os.path.relpath(file, ROOT) for file, _ in walk.entered}),
        "before_weights": walk.before_weights,
        "results_read": walk.results_read,
    }
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
