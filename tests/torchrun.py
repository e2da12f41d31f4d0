"""Run a module by several processes, as torchrun does."""

import os
import subprocess
import sys

LONGEST = 600
"""Seconds: a machine may have fewer cores than the module has processes, and other work."""


def torchrun(processes, *module, succeeds=True, **environment):
    """What a module said, by its streams and exit status.

    Args:
        processes: How many.
        module: Its name, and its arguments.
        succeeds: Whether another status than 0 fails the test.
        environment: Variables.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node", str(processes), "-m", *map(str, module)]
    given = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=LONGEST)
    assert done.returncode == 0 or not succeeds, done.stderr[-3000:]
    return done
