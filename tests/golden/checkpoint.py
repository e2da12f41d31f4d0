"""The tiny checkpoint with weights from a file: training it gives other ones on another CPU.

`weights.safetensors` holds the tensors of `tests.tiny_checkpoint` in bfloat16: the base, and of
each adapter checkpoint the weights and AdamW's moments. `python -m tests.golden.make weights`
trains them anew; every golden file changes with them.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.tiny_checkpoint import make_checkpoint

WEIGHTS = Path(__file__).parent / "weights.safetensors"
NAMES = ("step_4", "checkpoint-8")


def frozen_checkpoint(folder):
    """The folder of `make_checkpoint`, with the tensors of `weights.safetensors`."""
    make_checkpoint(folder, NAMES, steps=(1, 1))
    tensors = load_file(WEIGHTS)
    for name, file in _weight_files(folder).items():
        save_file(_below(tensors, name), file, {"format": "pt"})
    for name in NAMES:
        path = folder / name / "optimizer.pt"
        state = torch.load(path, weights_only=True)
        for index, moments in state["state"].items():
            moments |= _below(tensors, f"{name}/optimizer/{index}")
        torch.save(state, path)
    return folder


def save_weights(folder):
    """Train the checkpoint in `folder` and keep its tensors."""
    make_checkpoint(folder, NAMES)
    kept = {}
    for name, file in _weight_files(folder).items():
        kept |= {f"{name}/{key}": x for key, x in load_file(file).items()}
    for name in NAMES:
        state = torch.load(folder / name / "optimizer.pt", weights_only=True)["state"]
        for index, moments in state.items():
            kept |= {f"{name}/optimizer/{index}/{key}": x for key, x in moments.items()}
    save_file({key: x.bfloat16() for key, x in kept.items()}, WEIGHTS)


def _weight_files(folder):
    files = {"base": folder / "base" / "model.safetensors"}
    return files | {f"{n}/adapter": folder / n / "adapter_model.safetensors" for n in NAMES}


def _below(tensors, name):
    return {
        k.removeprefix(f"{name}/"): x.float()
        for k, x in tensors.items()
        if k.startswith(f"{name}/")
    }
