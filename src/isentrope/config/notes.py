"""Names of the original notes that are not ours; docs/from_notes.md has all of their names."""

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

ELSEWHERE = {
    "entropy_analysis": "isentrope kernel does it, with batch_config and fisher_kernel",
    "save_gradients": "gradients of sequences are not written; isentrope kernel writes their "
    "products, and fisher_kernel.where=disk holds the gradients while it runs",
    "entropy_probe": "it is a section of isentrope train; isentrope measure looks at a checkpoint",
    "simple_entropy_probe": "write entropy_probe with log_every, for isentrope train",
    "gns_probe": "write noise_scale for isentrope train; isentrope noise looks at a checkpoint",
    "generation": "write sampling, and batch_size for gen_batch_size",
    "true_delta_h": "estimator.method chooses the estimator, and no weight is clipped",
    "approx_delta_h": "estimator.order is the order of the prediction",
    "rb_requires_grad": "estimator.method=prefix always has its derivatives: leave it out",
    "tf_withgrad": "set precision.runtime_dtype and precision.update_vector",
    "results_path": "set output.directory",
}
"""What does the work of a key that is refused."""


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
