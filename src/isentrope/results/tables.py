"""Rows of the tables that are written as parquet: a class per table, a field per column.

Where a field has a default, files of earlier versions may lack its columns.
"""

from dataclasses import dataclass
from typing import Annotated

from isentrope.attribution.proxies.audit_table import AuditRow
from isentrope.nouns.columns import WITH_ERROR, WITH_INTERVAL, WITH_PROMPTS, Column, Parts
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.saved import Absent
from isentrope.results.attributions import EntropyRecord
from isentrope.results.sweep import SweepLine

PLAIN = Column()
WITH_UNIT: Parts = (*WITH_INTERVAL, ("n", "_n"), ("unit", "_unit"))


@dataclass(frozen=True, kw_only=True)
class InfluenceRow:
    """The influence of a prompt of E on a number of a measurement.

    Attributes:
        quantity: The number, by its path in results.json.
        prompt: The prompt draw.
        key: The prompt's key; None where it has none.
        influence: Its influence, in the unit of the number.
    """

    quantity: Annotated[str, PLAIN]
    prompt: Annotated[int, PLAIN]
    key: Annotated[str | None, PLAIN]
    influence: Annotated[float, PLAIN]


@dataclass(frozen=True, kw_only=True)
class SequenceRow:
    """A response of U, and what it does to entropy and reward per unit η.

    Attributes:
        sequence: Its place in U.
        prompt: Its prompt draw.
        key: The prompt's key; None where it has none.
        group: The prompt's group.
        length: Tokens.
        reward: Its reward; NaN where it is not known.
        advantage: Its advantage; NaN where it is not known.
        log_probability: S, nats, where tokens were scored.
        entropy: ℋ, nats, where tokens were scored.
        delta_h: Its part of δH₁.
        delta_j: Its part of δJ₁.
        prompt_text: The prompt; absent where there was no tokenizer.
        text: The response; None where it is not known.
    """

    sequence: Annotated[int, PLAIN]
    prompt: Annotated[int, PLAIN]
    key: Annotated[str | None, PLAIN]
    group: Annotated[Absent[str], PLAIN] = None
    length: Annotated[int, PLAIN]
    reward: Annotated[float, PLAIN]
    advantage: Annotated[float, PLAIN]
    log_probability: Annotated[Absent[float], Column(key="S")] = None
    entropy: Annotated[Absent[float], Column(key="H")] = None
    prompt_text: Annotated[Absent[str], PLAIN] = None
    delta_h: Annotated[Estimate, Column(parts=WITH_ERROR)]
    delta_j: Annotated[Absent[Estimate], Column(parts=WITH_ERROR)] = None
    text: Annotated[str | None, PLAIN]


@dataclass(frozen=True, kw_only=True)
class TokenRow:
    """A token of U, and what it does to entropy and reward per unit η.

    Attributes:
        sequence: Its response's place in U.
        prompt: Its prompt draw.
        position: Its place in the response, from 0.
        length: Tokens of the response.
        token_id: The token.
        surprisal: s, its log-probability, nats.
        entropy: H, the entropy of its distribution, nats.
        coefficient: c_ik.
        entropy_coefficient: d_ik, where the step has an entropy term.
        reward: The reward of its response; NaN where it is not known.
        advantage: The advantage of its response; NaN where it is not known.
        delta_h: Its part of δH₁.
        delta_j: Its part of δJ₁.
        text: The token; None where it is not known.
    """

    sequence: Annotated[int, PLAIN]
    prompt: Annotated[int, PLAIN]
    position: Annotated[int, PLAIN]
    length: Annotated[int, PLAIN]
    token_id: Annotated[int, PLAIN]
    log_probability: Annotated[float, Column(key="s")]
    entropy: Annotated[float, Column(key="H")]
    coefficient: Annotated[float, PLAIN]
    entropy_coefficient: Annotated[Absent[float], PLAIN] = None
    reward: Annotated[float, PLAIN]
    advantage: Annotated[float, PLAIN]
    delta_h: Annotated[Estimate, Column(parts=WITH_ERROR)]
    delta_j: Annotated[Absent[Estimate], Column(parts=WITH_ERROR)] = None
    text: Annotated[str | None, PLAIN]


@dataclass(frozen=True, kw_only=True)
class StructureRow:
    """A number of the pairs of one relation in a block of the kernel.

    Attributes:
        relation: How the two responses are related.
        quantity: The number.
        entries: Pairs.
        estimate: Its value.
        block: The block.
    """

    relation: Annotated[str, PLAIN]
    quantity: Annotated[str, PLAIN]
    entries: Annotated[int, PLAIN]
    estimate: Annotated[Estimate, Column(key="", parts=WITH_PROMPTS)]
    block: Annotated[str, PLAIN]


@dataclass(frozen=True, kw_only=True)
class BlockModelRow:
    """A coefficient or a part of the block model.

    Attributes:
        quantity: Its name.
        estimate: Its value.
        block: The block of the kernel.
    """

    quantity: Annotated[str, PLAIN]
    estimate: Annotated[Estimate, Column(key="", parts=WITH_PROMPTS)]
    block: Annotated[str, PLAIN]


@dataclass(frozen=True, kw_only=True)
class TruncationRow:
    """How well a truncation of the kernel predicts δH₁.

    Attributes:
        truncation: Its name.
        quantity: The number.
        estimate: Its value.
    """

    truncation: Annotated[str, PLAIN]
    quantity: Annotated[str, PLAIN]
    estimate: Annotated[Estimate, Column(key="", parts=WITH_PROMPTS)]


@dataclass(frozen=True, kw_only=True)
class NoiseRow:
    """A number of a noise scale.

    Attributes:
        part: What the noise is of.
        quantity: The number.
        estimate: Its value.
    """

    part: Annotated[str, Column("of", key="of", left=True)]
    quantity: Annotated[str, Column("quantity", left=True)]
    estimate: Annotated[Estimate, Column("value", key="", parts=WITH_UNIT, interval=1)]


@dataclass(frozen=True, kw_only=True)
class VarianceRow:
    """Errors of an estimator on batches of one size.

    Attributes:
        quantity: What is estimated.
        method: The estimator.
        prompts: Prompts of a batch.
        batches: Disjoint batches of that size.
        se: Root mean square of the standard errors that they claim.
        spread: Standard deviation of the estimates between them; NaN for few of them.
    """

    quantity: Annotated[str, PLAIN]
    method: Annotated[str, PLAIN]
    prompts: Annotated[int, PLAIN]
    batches: Annotated[int, PLAIN]
    se: Annotated[float, PLAIN]
    spread: Annotated[float, PLAIN]


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """What a control at a strength changes in a part of the step.

    Attributes:
        control: Its name.
        strength: How hard it acts.
        part: "step" or "gradient".
        eta: The learning rate.
        verdict: What the weights allow: "trust", "smooth" or "resample".
        delta_h: ΔH.
        delta_j: ΔJ, where rewards are known.
        gained_delta_h: ΔH less that of no control.
        gained_delta_j: ΔJ less that of no control.
        price: What the entropy gained costs, against a lower rate.
        over_random_delta_h: ΔH less that of random masks of as many tokens.
        over_random_delta_j: ΔJ less that of those masks.
        reached: Share of the frontier's radius at vanilla's length, in rows of the whole step.
        reached_over_vanilla: That less vanilla's.
        lost_delta_j: ηδJ lost against the edge at the row's own δH.
        length: Of the free part, in lengths of vanilla's.
        did: What the control says that it did to the batch, by the names that it gives.
        frontier: Whether no other control gains more of both.
    """

    control: Annotated[str, PLAIN]
    strength: Annotated[float, PLAIN]
    part: Annotated[str, PLAIN]
    eta: Annotated[float, PLAIN]
    verdict: Annotated[str, PLAIN]
    delta_h: Annotated[Estimate, PLAIN]
    delta_j: Annotated[Absent[Estimate], PLAIN] = None
    gained_delta_h: Annotated[Estimate, PLAIN]
    gained_delta_j: Annotated[Absent[Estimate], PLAIN] = None
    price: Annotated[Absent[Estimate], PLAIN] = None
    over_random_delta_h: Annotated[Absent[Estimate], PLAIN] = None
    over_random_delta_j: Annotated[Absent[Estimate], PLAIN] = None
    reached: Annotated[Absent[Estimate], PLAIN] = None
    reached_over_vanilla: Annotated[Absent[Estimate], PLAIN] = None
    lost_delta_j: Annotated[Absent[Estimate], PLAIN] = None
    length: Annotated[Absent[float], PLAIN] = None
    did: Annotated[dict[str, float], PLAIN]
    frontier: Annotated[bool, PLAIN]


ROWS: dict[str, type] = {
    "sweep": SweepLine,
    "influences": InfluenceRow,
    "sequences": SequenceRow,
    "tokens": TokenRow,
    "structure": StructureRow,
    "block_model": BlockModelRow,
    "truncations": TruncationRow,
    "noise": NoiseRow,
    "variance": VarianceRow,
    "audit": AuditRow,
    "trial": TrialRow,
    "entropies": EntropyRecord,
}
"""By the name of the file, without suffix."""
