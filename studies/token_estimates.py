"""Which published estimate of a token's entropy change predicts what the step really causes?

    python -m studies.token_estimates --run build/token_estimates toy_8 toy_24 toy_40
    python -m studies.token_estimates --run build/token_estimates compose_50 compose_150
    python -m studies.token_estimates --run build/token_estimates smollm2_20 \\
        --smollm2 runs/smollm2_0/training_state/step_20
    python -m studies.token_estimates --run build/token_estimates --page

Fixed before it ran.

*Arms.* Every proxy with a sign of `isentrope.attribution.proxies` (T9): the covariance of Cui et
al., S* and its batch-centred form and the local change (arXiv 2602.03392), Ω of STEER, the sets of
STARE, surprisal × A, and A alone, the null that any of them must beat. Six steps: the toy after 8,
24 and 40 steps of seed 0 (configs/train_toy.yaml, E of 1,024 prompts, U of 64 × 8), `compose` after
50 and 150 steps of vanilla from base 0 (E of 2,048, U of 1,024 × 8, where few groups differ in
reward), and SmolLM2-135M after 20 steps
of configs/train_smollm2_sentence.yaml, seed 0 (E of 64, U of 12 × 8, a third of the own states).

*Targets.* δH_ik, the exact influence of the token on held-out responses (P of AdamW, T6); the same
by response; and D_ik = c_ik <∂H_ik, P ∂s_ik>, what the token does to the entropy of its own state:
the diagonal, through the network and P, of up to 300 tokens drawn at random. D itself is held
against δH too: it is what no estimate by state can beat.

*Reading.* An estimate predicts the step where the 95 % interval of its rank correlation with δH_ik
is above .5, is against the step where it is below 0, and predicts its own state alone where the
interval of the one with D_ik is above .5 and that with δH_ik is neither. Intervals are those of
`isentrope audit`, over prompts of U.

*Stopping.* One pass over the six steps. A step is run again only after a fault of the program, and
SmolLM2 is left out if it takes more than 10 minutes of one CPU. Two departures: `compose_50` had U
of 64 × 8 first, 68 tokens with a weight and intervals of about [−1, 1], which were read before U
became larger; and SmolLM2 was stopped before its 10 minutes, at 3 with E of 128 and U of 24 × 8,
and at 6 with the smaller batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

from isentrope.attribution.proxies.audit import Audit
from isentrope.attribution.proxies.proxies import mean_discriminators
from isentrope.config.io import load_config
from isentrope.config.measure import MeasureConfig
from isentrope.nouns.vectors import dot, multiply
from isentrope.policy.gradient import weighted_gradients
from isentrope.verbs.batches import at_precision
from isentrope.verbs.influence import influence_of
from isentrope.verbs.prepare import Prepared
from studies.command import measure_steps
from studies.compose_estimates import measure_compose
from studies.token_tables import NAMES, OWN_STATE, Measured, table, verdict
from studies.toy_attribution import checkpoints, configured, prepared

OWN_STATES = 300
TITLES = {
    "toy_8": "The toy, step 8",
    "toy_24": "The toy, step 24",
    "toy_40": "The toy, step 40",
    "compose_50": "`compose`, step 50",
    "compose_150": "`compose`, step 150",
    "smollm2_20": "SmolLM2-135M, step 20",
}


def own_states(
    ready: Prepared, acting: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """D_ik of so many tokens drawn at random, and which they are."""
    policy, U, step = ready.policy, ready.U, ready.step
    places = acting.nonzero()
    drawn = torch.randperm(len(places), generator=torch.Generator().manual_seed(9))[:count]
    own = torch.zeros(acting.shape, dtype=torch.float64)
    sampled = torch.zeros_like(acting)
    for i, k in places[drawn].tolist():
        alone = U.select(torch.tensor([i]))
        one = torch.zeros(1, int(alone.lengths[0]), dtype=torch.float64)
        one[0, k] = 1.0
        weights = [(one, None), (torch.zeros_like(one), one)]
        of_token, of_entropy = weighted_gradients(policy, alone, weights)
        own[i, k] = dot(of_entropy, multiply(step.preconditioner, of_token))
        sampled[i, k] = True
    return own * step.token_weights, sampled


def measure_checkpoint(config: MeasureConfig, count: int = OWN_STATES) -> Measured:
    """Influence and own-state change at a checkpoint of isentrope's own."""
    ready = prepared(config)
    with at_precision(ready.policy, config.precision.measuring):
        influence = influence_of(ready, tokens=True, reward=False)
        means = mean_discriminators(ready.policy, ready.U)
        own, sampled = own_states(ready, influence.acting, count)
    parts = influence.entropy.by_group_and_token
    assert influence.scores is not None
    assert influence.entropy.tokens is not None
    assert parts is not None
    assert ready.U.advantages is not None
    first, second = (half.sum(0) for half in parts.tensor_split(2))
    return Measured(
        scores=influence.scores,
        advantages=ready.U.advantages,
        means=means,
        prompt_index=ready.U.prompt_index,
        acting=influence.acting,
        influence=influence.entropy.tokens,
        halves=(first, second),
        own_state=own,
        sampled=sampled,
    )


def smollm2_config(path: Path) -> MeasureConfig:
    """What is measured of SmolLM2."""
    return load_config(
        {
            "checkpoint": {"checkpoint_path": str(path)},
            "batch_config": {
                "dataset_name": "examples/sentence.py:Sentence",
                "B_E": 64,
                "B_U": 12,
                "G": 8,
            },
            "analysis": {"groups": 2, "overlap": "independent"},
            "precision": {"runtime_dtype": "float32"},
            "sampling": {"max_tokens": 1024},
        }
    )


def measure(name: str, folder: Path, smollm2: Path | None) -> Measured:
    """The tokens of one of the six steps."""
    policy, _, step = name.partition("_")
    if policy == "compose":
        return measure_compose(int(step), OWN_STATES)
    if policy == "smollm2":
        if smollm2 is None:
            raise SystemExit("smollm2_20 needs the checkpoint: give --smollm2 RUN/…/step_20.")
        return measure_checkpoint(smollm2_config(smollm2), OWN_STATES // 3)
    states = checkpoints(folder / "toy", 0)
    return measure_checkpoint(configured(states / f"step_{step}", 1024, 64))


def page(audits: dict[str, dict[str, Audit]]) -> str:
    """The verdicts, and the table of every step."""
    steps = [name for name in TITLES if name in audits]
    lines = [
        f"| estimate | {' | '.join(TITLES[s] for s in steps)} |",
        "|---|" + "---|" * len(steps),
    ]
    for proxy, name in NAMES.items():
        if proxy != OWN_STATE:
            cells = [verdict(audits[step], proxy) for step in steps]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    parts = [f"`python -m studies.token_estimates`, {date.today()}.", "\n".join(lines)]
    parts += [f"## {TITLES[step]}\n\n{table(audits[step])}" for step in steps]
    return "\n\n".join(parts) + "\n"


def measure_audits(name: str, folder: Path, smollm2: Path | None) -> Any:
    """The audits of a step, which are printed."""
    audits = measure(name, folder, smollm2).audits()
    print(TITLES[name], table(audits), sep="\n", flush=True)
    return audits


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure steps, or write the tables of those that are measured."""
    measure_steps("token_estimates", TITLES, measure_audits, page, arguments)


if __name__ == "__main__":
    main()
