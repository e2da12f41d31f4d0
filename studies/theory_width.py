"""K_ii against the width of the model: of order one where weights are of order 1/√N?

    python -m studies.theory_width

K_ii = ∂S_iᵀ P ∂S_i is how far a step on a response moves its own log-probability. With δ_l and x_l
the output gradient and the input of a layer at position l, |∂S|² = Σ |Σ_l δ_l x_lᵀ|². Where weights
are of order 1/√N and norms keep the entries of x of order one, |x|² = N and |δ|² is of order one,
so K_ii grows as N for P = 1. An optimizer that divides by the root mean square of the gradient of
each parameter (Adam without momentum) has Σ_k g_ik²/rms_k, of order √(N · d) = N^1.5.

Fixed before it ran. Subjects: random transformers of one layer over eight tokens, widths 16 to 256,
eight seeds of each, 16 responses of 8 tokens drawn from each policy, float64. Arms: weights of
standard deviation 1/√N, and of .02 at every width, as usual; P = 1 and P = 1/rms of the 16
gradients. Reading: the exponent a of mean K_ii ~ N^a, a least-squares line of logarithms per seed,
with the 95 % interval over seeds; "of order one" where it holds 0. The cosine of two responses is
beside it, which no scale of K changes. Stopping: once. Writes docs/results/theory_width.md.
"""

from __future__ import annotations

import math

import torch

from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.sampling.generate import respond
from isentrope.sampling.prompts import as_prompts
from studies.theory_policies import gradient_matrix, over, transformer, write_page

VOCABULARY = 8
PROMPT = [0, 1, 2]
WIDTHS = (16, 32, 64, 128, 256)
SEEDS = range(8)
RESPONSES = 16
LENGTH = 8
USUAL = 0.02
"""Standard deviation of weights that transformers takes by default."""
FLOOR = 1e-30
"""Below this mean square a parameter has no gradient (rows of tokens that no response holds)."""


def exponent(widths: tuple[int, ...], values: list[float]) -> float:
    """Slope of the least-squares line of log values on log widths."""
    x = torch.tensor(widths, dtype=torch.float64).log()
    y = torch.tensor(values, dtype=torch.float64).log()
    x = x - x.mean()
    return float(x @ y / x.square().sum())


def sizes(width: int, scale: float, seed: int) -> dict[str, float]:
    """Mean K_ii by P, and the mean cosine of two responses for P = 1."""
    policy = transformer(VOCABULARY, width, seed=seed, scale=scale)
    generator = torch.Generator().manual_seed(seed)
    prompts = as_prompts(policy, [PROMPT])
    drawn = respond(policy, prompts, RESPONSES, generator, max_new_tokens=LENGTH)
    w = gradient_matrix(policy, score_sums(drawn))
    square = w.square()
    mean_square = square.mean(0)
    acting = mean_square > FLOOR
    rescaled = square[:, acting] / mean_square[acting].sqrt()
    unit = w / w.norm(dim=1, keepdim=True)
    cosines = unit @ unit.T
    pairs = ~torch.eye(len(w), dtype=torch.bool)
    return {
        "P = 1": float(square.sum(1).mean()),
        "P = 1/rms": float(rescaled.sum(1).mean()),
        "cosine": float(cosines[pairs].mean()),
    }


def tables() -> str:
    """Exponents, then the sizes behind them."""
    summary = ["| weights | P | exponent of K_ii | of order one |", "|---|---|---|---|"]
    rows = ["| weights | N | K_ii, P = 1 | K_ii, P = 1/rms | cosine |", "|---|---|---|---|---|"]
    for name in ("1/√N", "0.02"):
        found = {
            width: [
                sizes(width, 1 / math.sqrt(width) if name == "1/√N" else USUAL, seed)
                for seed in SEEDS
            ]
            for width in WIDTHS
        }
        for P in ("P = 1", "P = 1/rms"):
            slopes = [exponent(WIDTHS, [found[w][seed][P] for w in WIDTHS]) for seed in SEEDS]
            text = over(slopes)
            value, half = (float(x) for x in text.split(" ± "))
            summary.append(f"| {name} | {P} | {text} | {'yes' if abs(value) <= half else 'no'} |")
        for width in WIDTHS:
            names = ("P = 1", "P = 1/rms", "cosine")
            cells = [over([cell[key] for cell in found[width]]) for key in names]
            rows.append(f"| {name} | {width} | " + " | ".join(cells) + " |")
            print(rows[-1], flush=True)
    return "\n".join(summary) + "\n\n" + "\n".join(rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_page("theory_width", tables())
