"""Counts the passes that a verb takes while it runs, by hooks on the scorer and on autograd."""

import sys
from collections import Counter, defaultdict
from contextlib import contextmanager

import torch
from torch._C._functorch import CVmapInterpreterPtr, TransformType, get_interpreter_stack

from isentrope.policy.language_model import Scorer
from isentrope.system.progress import Clock

FEW = {
    *("require_derivatives", "require_own_logits", "require_same_function"),
    *("require_float64", "_check"),
}
"""Functions that read a few sequences, whose passes are not counted."""

BACKWARD = ("_differentiate", "_visit_batch")
"""Functions that take a backward pass through the model."""


def transforms():
    """How many forward-mode levels act, and how many directions they carry."""
    levels, directions = 0, 1
    for interpreter in get_interpreter_stack() or ():
        levels += interpreter.key() == TransformType.Jvp
        if interpreter.key() == TransformType.Vmap:
            directions *= CVmapInterpreterPtr(interpreter).batchSize()
    return levels, directions


def callers():
    """Names of functions of the library on the stack, the innermost first."""
    frame, names = sys._getframe(2), []
    while frame is not None:  # `inspect.stack` reads every source
        if "isentrope/" in frame.f_code.co_filename:
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def count_passes_taken(run, monkeypatch):
    """The result of `run()`, and stage → Counter of responses × passes by kind while it runs."""
    counts = defaultdict(Counter)
    stages = ["none"]
    inside, last = [], [0]

    def counting(function):
        def scored(self, batch, *arguments, **options):
            if not inside and not FEW & {*callers()}:
                levels, directions = transforms()
                kind = ("forward", "forward_mode", "second_order")[levels]
                counts[stages[-1]][kind] += len(batch.sequences) * directions
                last[0] = len(batch.sequences)
            inside.append(function)
            try:
                return function(self, batch, *arguments, **options)
            finally:
                inside.pop()

        return scored

    for name in ("scores", "hidden"):
        monkeypatch.setattr(Scorer, name, counting(getattr(Scorer, name)))
    gradient, depth = torch.autograd.grad, []

    def counted_gradient(*arguments, **options):
        names = callers()
        if not depth and names[:1] and names[0] in BACKWARD and not FEW & {*names}:
            counts[stages[-1]]["backward"] += last[0]
        depth.append(1)
        try:
            return gradient(*arguments, **options)
        finally:
            depth.pop()

    monkeypatch.setattr(torch.autograd, "grad", counted_gradient)
    stage = Clock.stage

    @contextmanager
    def named_stage(self, name):
        stages.append(name)
        try:
            with stage(self, name):
                yield
        finally:
            stages.pop()

    monkeypatch.setattr(Clock, "stage", named_stage)
    return run(), counts
