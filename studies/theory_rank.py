"""How the rank of a LoRA adapter and the width of the model shape the Fisher kernel.

    python -m studies.theory_rank --run runs/theory

Toys that were fine-tuned on two-digit addition (configs/sft_toy.yaml). On that of width 128, the
kernel of one batch (24 prompts × 8) is computed for fresh adapters of rank 1 to 128 on every
linear layer, for all weights of those layers, and for all parameters. Adapters of rank 1, 4, 16 and
64 are then trained for 40 steps (configs/train_toy.yaml). Toys of width 32, 64 and 128, fine-tuned
alike, give the effect of width, over all parameters. Writes docs/results/theory_rank.md. About ten
minutes on one thread with what has to be trained; what is done is kept in the folder.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

import isentrope as ise
from examples.checkpoints import with_lora
from isentrope.attribution.fisher.prompt_pairs import cosines
from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.config.io import load_config
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.sampling.tasks.addition import Addition, longest_response
from isentrope.training.models import load_trainable
from isentrope.verbs.sft import sft
from isentrope.verbs.train import train
from studies.theory_policies import gradient_matrix, over, run_folder, write_page
from validation.toy_training import QUIET

MAX_NEW_TOKENS = longest_response(2)

RANKS = (1, 2, 4, 8, 16, 32, 64, 128)
TRAINED = (1, 4, 16, 64)
WIDTHS = (32, 64, 128)
SEEDS = range(4)
PROMPTS, GROUP = 24, 8
FEW = 32
"""Sequences of which the spread over adapters is predicted and measured."""


def fine_tuned(folder: Path, width: int) -> Path:
    """The model folder of a toy of some width after fine-tuning."""
    out = folder / f"sft_width_{width}"
    if (out / "model").exists():
        return out / "model"
    settings = [f"output.directory={out}", *QUIET]
    if width != 128:
        start = folder / f"start_width_{width}"
        save_start(start, width)
        settings.append(f"model.path={start}")
    sft(load_config("configs/sft_toy.yaml", settings, SftConfig))
    return out / "model"


def save_start(folder: Path, width: int) -> None:
    """Write a toy of another width with random weights, as `build_toy_policy` draws them."""
    from transformers import Qwen2ForCausalLM

    from isentrope.training.models import build_toy_policy

    toy = build_toy_policy(0)
    config = toy.model.config
    config.hidden_size, config.intermediate_size = width, round(344 * width / 128)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).float().save_pretrained(folder)
    toy.tokenizer.save_pretrained(folder)


def plain(model: Path) -> Policy:
    """A fine-tuned toy over all parameters."""
    loaded, tokenizer = load_trainable(str(model), lora_rank=0, lora_alpha=1)
    return Policy(loaded.eval(), tokenizer, precision="float32")


def of_linear_layers(policy: Policy) -> Policy:
    """The same over the weights that an adapter would change."""
    for name, p in policy.model.named_parameters():
        p.requires_grad_(name.endswith("_proj.weight"))
    return Policy(policy.model, policy.tokenizer, precision=policy.precision)


def batch(policy: Policy) -> Rollouts:
    """The sequences of the kernel."""
    prompts = Addition("test", digits=2).prompts
    return ise.sample(policy, prompts, PROMPTS, GROUP, max_new_tokens=MAX_NEW_TOKENS, seed=7)


def summary(kernel: ise.FisherKernel) -> list[str]:
    """Effective rank, shares of the top eigenvalues and cosines, each with its interval."""
    spectrum, structure = kernel.spectrum(), kernel.structure()
    estimates = [
        spectrum.effective_rank,
        spectrum.shares[1],
        spectrum.shares[20],
        structure["same_prompt"].rms_cosine,
        structure["cross_prompt"].rms_cosine,
    ]
    return [f"{e.value:.3g} [{e.ci_low:.3g}, {e.ci_high:.3g}]" for e in estimates if e]


def agreement(kernel: Tensor, reference: Tensor, prompts: Tensor) -> list[float]:
    """Against a reference: correlation of cosines off the diagonal, and relative distance.

    Args:
        kernel: (n, n).
        reference: (n, n).
        prompts: (n,) prompt of each row.

    Returns:
        Pearson correlation of the cosines of one prompt and of different ones, and
        |K/tr K − R/tr R| over |R/tr R|, Frobenius.
    """
    both = [cosines(x, x.diagonal(), x.diagonal()).nan_to_num(0.0) for x in (kernel, reference)]
    same = prompts[:, None] == prompts
    off = ~torch.eye(len(kernel), dtype=torch.bool)
    found = [
        float(torch.corrcoef(torch.stack([x[mask & off] for x in both]))[0, 1])
        for mask in (same, ~same)
    ]
    scaled, true = kernel / kernel.trace(), reference / reference.trace()
    return [*found, float((scaled - true).norm() / true.norm())]


def adapter_moments(
    gradients: Tensor, rank: int, variance: float, kurtosis: float = 1.8, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Mean and variance over A of the kernel of one layer's fresh adapter, scale · B A with B = 0.

    Args:
        gradients: (n, o, i) ∂S of every sequence by the layer's weight.
        rank: r, the rows of A.
        variance: σ² of the entries of A, independent of one another.
        kurtosis: Of the entries: 1.8 for a uniform distribution, 3 for a normal one.
        scale: s.

    Returns:
        (n, n) s² r σ² <G_i, G_j>, and (n, n) s⁴ r σ⁴ (2 |sym M|² + (κ − 3) Σ_c M_cc²) with
        M = G_iᵀ G_j.
    """
    n = len(gradients)
    mean, spread = torch.zeros(2, n, n, dtype=torch.float64)
    for i, g in enumerate(gradients.double()):
        products = g.T @ gradients.double()  # (n, i, i), M of this row
        diagonal = products.diagonal(dim1=1, dim2=2)
        symmetric = (products + products.transpose(1, 2)) / 2
        mean[i] = diagonal.sum(1)
        spread[i] = 2 * symmetric.square().sum((1, 2))
        spread[i] += (kurtosis - 3) * diagonal.square().sum(1)
    return scale**2 * rank * variance * mean, scale**4 * rank * variance**2 * spread


def predicted_spread(policy: Policy, U: Rollouts) -> float:
    """c of the relative spread √(c/r) of a fresh adapter's kernel, over its linear layers.

    Args:
        policy: Over the weights of the linear layers.
        U: A few sequences.

    Returns:
        c = Σ_ij Var K_ij / |E K|²_F at rank one, entries of A uniform on ±1/√i.
    """
    flat = gradient_matrix(policy, score_sums(U))
    sizes = [p.numel() for p in policy.theta.values()]
    mean = spread = torch.zeros(len(U), len(U), dtype=torch.float64)
    for p, rows in zip(policy.theta.values(), flat.split(sizes, 1), strict=True):
        m, v = adapter_moments(rows.view(len(U), *p.shape), 1, 1 / (3 * p.shape[1]))
        mean, spread = mean + m, spread + v
    return float(spread.sum() / mean.square().sum())


def measured_spread(kernels: list[Tensor]) -> float:
    """√ of the variance of kernels over |mean|², Frobenius, the mean's square without its noise."""
    stacked = torch.stack(kernels)
    n, mean = len(stacked), stacked.mean(0)
    variance = float((stacked - mean).square().sum()) / (n - 1)
    return (variance / (float(mean.square().sum()) - variance / n)) ** 0.5


def rank_rows(model: Path) -> list[str]:
    """One row per adapter rank, then the linear weights and all parameters."""
    U = batch(plain(model))
    full = ise.fisher_kernel(of_linear_layers(plain(model)), U)
    c = predicted_spread(of_linear_layers(plain(model)), U.select(range(FEW)))
    rows = []
    for rank in RANKS:
        kernels = [ise.fisher_kernel(with_lora(plain(model), rank, seed=seed), U) for seed in SEEDS]
        found = [agreement(k.matrix, full.matrix, U.prompt_index) for k in kernels]
        near = [over(list(x)) for x in zip(*found, strict=True)]
        ranks = over([k.spectrum().effective_rank.value for k in kernels])
        d = kernels[0].parameters
        near.append(f"{measured_spread([k.matrix[:FEW, :FEW] for k in kernels]):.3g}")
        near.append(f"{(c / rank) ** 0.5:.3g}")
        rows.append(f"| LoRA {rank} | {d:,} | {ranks} | " + " | ".join(near) + " |")
        print(rows[-1], flush=True)
    everything = ise.fisher_kernel(plain(model), U)
    for name, kernel in (("linear weights", full), ("all parameters", everything)):
        near = [f"{x:.3g}" for x in agreement(kernel.matrix, full.matrix, U.prompt_index)]
        rank = kernel.spectrum().effective_rank
        cell = f"{rank.value:.3g} [{rank.ci_low:.3g}, {rank.ci_high:.3g}]"
        rows.append(f"| {name} | {kernel.parameters:,} | {cell} | " + " | ".join(near) + " | | |")
    return rows


def trained_rows(folder: Path) -> list[str]:
    """One row per rank of an adapter that was trained."""
    rows = []
    for rank in TRAINED:
        out = folder / f"trained_rank_{rank}"
        if not (out / "training_state" / "step_40").exists():
            settings = [f"model.path={fine_tuned(folder, 128)}", f"output.directory={out}", *QUIET]
            settings += [f"model.lora_rank={rank}", f"model.lora_alpha={2 * rank}"]
            settings += ["training.save_every=40", "entropy_probe.enabled=false"]
            train(load_config("configs/train_toy.yaml", settings, TrainConfig))
        state = out / "training_state" / "step_40"
        rows.append(row(str(rank), Policy.from_checkpoint(state, precision="float32")))
    return rows


def row(name: str, policy: Policy) -> str:
    """What the kernel of a policy over its own responses looks like, and how good the policy is."""
    U = batch(policy)
    right = float(ise.with_rewards(U, Addition("test", digits=2)).rewards.mean())
    h = ise.entropy(policy, U)
    kernel = ise.fisher_kernel(policy, U)
    cells = [f"{kernel.parameters:,}", f"{right:.2f}", f"{h.value:.3f} ± {h.se:.3f}"]
    out = f"| {name} | " + " | ".join([*cells, *summary(kernel)]) + " |"
    print(out, flush=True)
    return out


def width_rows(folder: Path) -> list[str]:
    """One row per width."""
    return [row(str(width), plain(fine_tuned(folder, width))) for width in WIDTHS]


def main() -> None:
    """Write the page."""
    folder = run_folder(__doc__)
    trained = [TRAINED_HEAD, *trained_rows(folder)]
    fresh = [RANK_HEAD, *rank_rows(fine_tuned(folder, 128))]
    widths = [WIDTH_HEAD, *width_rows(folder)]
    write_page("theory_rank", "\n\n".join("\n".join(table) for table in (fresh, trained, widths)))


RANK_HEAD = """### Rank of a fresh adapter, width 128

| trained | d | effective rank | r of cosines, same | r, other | distance | spread | predicted |
|---|---|---|---|---|---|---|---|"""
TRAINED_HEAD = """### Adapters after 40 steps, width 128

| rank | d | pass@1 | h | effective rank of 192 | top 1 | top 20 | rms cosine, same | other |
|---|---|---|---|---|---|---|---|---|"""
WIDTH_HEAD = """### Width, all parameters

| width | d | pass@1 | h | effective rank of 192 | top 1 | top 20 | rms cosine, same | other |
|---|---|---|---|---|---|---|---|---|"""


if __name__ == "__main__":
    main()
