"""Trained layers that are spread over processes: the policy is that of whole ones."""

import os
import subprocess
import sys


def test_scores_derivatives_and_vectors_are_those_of_whole_layers():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node", "3", "-m", "tests.policy.spread_theta"]
    given = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
