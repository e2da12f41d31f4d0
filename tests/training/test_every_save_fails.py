"""Whichever call of saving a checkpoint fails, a sentence says so and the last one stays good."""

import builtins
import errno
import hashlib
import io
import json
import os
import pathlib
import shutil

import pytest
import tokenizers
import torch

from isentrope.system import files
from isentrope.training import checkpoints
from tests.training import runs

OTHERS = [errno.EIO, errno.EMFILE, errno.EACCES]
ADVICE = {
    errno.ENOSPC: "free disk space",
    errno.EIO: "see to the disk",
    errno.EMFILE: "allow more open files",
    errno.EACCES: "allow writing there",
}


def by_python(number):
    return OSError(number, os.strerror(number))


def by_rust(number):
    return Exception(f"{os.strerror(number)} (os error {number})")


def by_torch(number):
    return RuntimeError("basic_ios::clear: iostream error")


CALLS = [
    *(
        (builtins, "open", by_python),
        (io, "open", by_python),
        (pathlib.Path, "write_text", by_python),
    ),
    *((os, name, by_python) for name in ("open", "fsync", "replace", "mkdir", "unlink", "rmdir")),
    (tokenizers.Tokenizer, "save", by_rust),
    (torch, "save", by_torch),
    (checkpoints, "save_file", by_rust),
    (files, "sha256_of_file", by_python),
]


def failing_at(patch, n, number):
    """Let the n-th call of `CALLS` fail; a list with what was called."""
    called = []
    for owner, name, error in CALLS:
        plain = getattr(owner, name)

        def deadly(*args, _plain=plain, _error=error, _name=name, **kwargs):
            called.append(_name)
            if len(called) == n:
                raise _error(number)
            return _plain(*args, **kwargs)

        patch.setattr(owner, name, deadly)
    return called


def content(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trainer that stands at step 1, with step 0 saved."""
    made = runs.trainer(tmp_path_factory.mktemp("run"), steps=1)
    made.train()
    shutil.rmtree(made.files.checkpoint(1))
    return made


@pytest.mark.parametrize(
    "number",
    [errno.ENOSPC, *(pytest.param(number, marks=pytest.mark.slow) for number in OTHERS)],
    ids=errno.errorcode.get,
)
def test_whichever_call_fails_the_last_checkpoint_is_good_and_named(trained, number):
    run = trained.files
    good = content(run.checkpoint(0))
    n = 0
    while True:
        n += 1
        with pytest.MonkeyPatch.context() as patch:
            called = failing_at(patch, n, number)
            try:
                trained._save_checkpoint(trained.model, None)
            except OSError as error:
                sentence = str(error)
            else:
                sentence = None
        assert content(run.checkpoint(0)) == good
        if len(called) < n:  # every call has failed once
            break
        if sentence is not None:
            assert str(run.folder) in sentence, called[-1]
            assert ADVICE[number] in sentence or "see to the disk" in sentence, called[-1]
        if run.checkpoint(1).exists():  # what failed came after it, or was gone over
            shutil.rmtree(run.checkpoint(1))
    assert sentence is None
    assert n > 50
    saved = content(run.checkpoint(1))
    shutil.rmtree(run.checkpoint(1))
    trained._save_checkpoint(trained.model, None)
    assert content(run.checkpoint(1)) == saved
    shutil.rmtree(run.checkpoint(1))
    assert not [path for path in run.checkpoints.iterdir() if path.name.startswith(".")]


def test_a_checkpoint_has_the_lines_since_the_one_before_it(tmp_path):
    made = runs.trainer(tmp_path, steps=4, save_steps=2)
    made.train()
    for step in (2, 4):
        state = json.loads((made.files.checkpoint(step) / "trainer_state.json").read_text())
        assert [line["step"] for line in state["log_history"]] == [step - 1, step]
    assert {line["step"] for line in made.state.log_history} >= {1, 2, 3, 4}
