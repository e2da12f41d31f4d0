"""The small policies of the theory pages, and their score vectors as one matrix."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from isentrope.attribution.gradients.sequence_gradients import SequenceGradients
from isentrope.attribution.gradients.storage_plan import GradientBackend
from isentrope.attribution.gradients.token_sum import TokenSum
from isentrope.nouns.freedom import t_quantile
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.system.formatting import TERMINAL
from validation.origin import write_results


def transformer(
    vocabulary: int,
    hidden: int,
    *,
    layers: int = 1,
    seed: int = 0,
    scale: float = 0.5,
    positions: int = 512,
) -> Policy:
    """A random Qwen2 in float64 whose responses have no end but their length limit.

    Args:
        vocabulary: v.
        hidden: Width; two attention heads.
        layers: Number of layers.
        seed: Seed of the weights.
        scale: Standard deviation of the weights.
        positions: Longest sequence.

    Returns:
        The policy, all parameters trainable.
    """
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        initializer_range=scale,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,  # its embedding would be zero
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config).double().eval()
    return Policy(model, eos_token_id=(), pad_token_id=0)


def gradient_matrix(policy: Policy, sums: TokenSum, backend: GradientBackend = "hooks") -> Tensor:
    """(rows, d) gradients of some functions of a policy, parameters one after the other."""
    rows = {n: p.new_zeros(sums.n_rows, p.numel()) for n, p in policy.theta.items()}

    def add(name: str, of: Tensor, gradients: Tensor) -> None:
        rows[name].index_add_(0, of, gradients.flatten(1))

    SequenceGradients(policy, backend).visit(sums, add)
    return torch.cat([rows[n] for n in policy.theta], 1)


def all_responses(prompt: list[int], vocabulary: int, length: int) -> Rollouts:
    """Every response of a fixed length to a prompt, in dictionary order."""
    digits = [torch.arange(vocabulary)] * length
    responses = torch.cartesian_prod(*digits).reshape(-1, length)
    ids = [torch.tensor(prompt)] * len(responses)
    return Rollouts(ids, list(responses), torch.zeros(len(responses), dtype=torch.int64))


def over(values: list[float] | Tensor) -> str:
    """Mean ± half of the 95 % t-interval over repetitions."""
    x = torch.as_tensor(values, dtype=torch.float64)
    half = t_quantile(len(x) - 1) * float(x.std()) / len(x) ** 0.5
    return TERMINAL.with_error(float(x.mean()), half)


def run_folder(description: str | None) -> Path:
    """The folder of the toy's runs that the command line names; torch gets one thread."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--run", default="runs/theory", help="(%(default)s)")
    torch.set_num_threads(1)
    return Path(parser.parse_args().run)


TABLES = "<!-- tables: written by the benchmark -->"


def write_page(name: str, tables: str) -> None:
    """Replace what follows the mark in docs/results/NAME.md; the text above it is by hand."""
    page = Path("docs/results") / f"{name}.md"
    text = page.read_text().split(TABLES)[0] if page.exists() else f"# {name}\n\n"
    write_results(page, f"{text}{TABLES}\n\n{tables}\n")
    print(f"Wrote {page}")
