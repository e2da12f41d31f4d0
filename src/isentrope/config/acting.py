"""Which settings act on a step, and names of the original notes that are not ours.

Names of the original notes that are not ours; docs/from_notes.md has all of their names.
"""

from __future__ import annotations

from pathlib import Path

BACKBONES = {
    "phi2": "microsoft/phi-2",
    "phi1_5": "microsoft/phi-1_5",
    "tinyllama": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "gemma2b": "google/gemma-2b-it",
    "qwen2": "Qwen/Qwen2-0.5B",
    "qwen2_5_05": "Qwen/Qwen2.5-0.5B",
    "qwen2_5_15": "Qwen/Qwen2.5-1.5B",
}
"""Keys of the notes' model registry."""

ELSEWHERE = [
    *("entropy_analysis", "save_gradients", "entropy_probe", "simple_entropy_probe", "gns_probe"),
    *("generation", "true_delta_h", "approx_delta_h", "rb_requires_grad", "tf_withgrad"),
    "results_path",
]
"""Keys that are refused, and whose work another one does."""


def base_of(backbone: str) -> str:
    """The folder or the hub's name of a base model that is given as `backbone`.

    Returns:
        What `checkpoint.base_model` is to be.

    Raises:
        ValueError: If it is a key of a registry that is not known here.
    """
    if backbone in BACKBONES and not Path(backbone).exists():
        return BACKBONES[backbone]
    if "/" in backbone or Path(backbone).exists():
        return backbone
    raise ValueError(
        f"backbone {backbone[:80]!r} is neither a folder, nor OWNER/NAME on the model hub, nor one "
        f"of {', '.join(BACKBONES)}: give checkpoint.base_model"
    )
