"""The sizes that a configuration asks for, as `isentrope.planning` takes them."""

from __future__ import annotations

from dataclasses import dataclass

from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.measure import MeasureConfig
from isentrope.planning.followed import Batch
from isentrope.planning.sizes import Sizes


@dataclass(frozen=True)
class Lengths:
    """A batch that is known: sequences, and the longest prompt and response, in tokens."""

    sequences: int | None
    prompt: int
    response: int | None = None


def measuring_sizes(config: MeasureConfig, E: Lengths, U: Lengths) -> Sizes:
    """The sizes of the measuring verbs.

    Args:
        config: The configuration.
        E: What is known of E.
        U: What is known of U.

    Returns:
        The sizes, responses as long as they may be where they are still to be drawn.
    """
    data, sampling, analysis = config.batch_config, config.sampling, config.analysis
    longest = sampling.max_new_tokens

    def batch(known: Lengths, drawn: int) -> Batch:
        return Batch(known.sequences or drawn, known.prompt, known.response or longest)

    estimator, precision = config.estimator, config.precision
    return Sizes(
        E=batch(E, data.B_E * data.G_E),
        U=batch(U, data.B_U * data.G),
        draws_E=data.E_file is None,
        draws_U=data.U_file is None,
        sampled_at_once=sampling.batch_size,
        max_tokens=sampling.max_tokens,
        vocab_chunk=sampling.vocab_chunk,
        measuring=precision.measuring,
        updating=precision.updating,
        sampling=precision.sampling,
        order=estimator.order,
        rates=len(estimator.etas(1.0)),
        entropies=estimator.functional == "per_token",
        groups=analysis.groups,
        tokens=analysis.tokens,
        reward=analysis.reward,
        blocks=tuple(config.fisher_kernel.blocks),
        fresh=analysis.share_responses,
        past=analysis.momentum_steps,
        prompts=data.B_U,
        group_E=data.G_E,
        storage=config.fisher_kernel.held,
    )


def evaluation_sizes(config: EvaluateConfig, prompt: int) -> Sizes:
    """The sizes of a chunk of an evaluation.

    Args:
        config: The configuration.
        prompt: Tokens of the longest prompt.

    Returns:
        The sizes; E is what is drawn and scored at a time.
    """
    profile, sampling, precision = config.evaluation, config.sampling, config.precision
    n = profile.chunk_prompts * profile.samples_per_prompt
    chunk = Batch(n, prompt, sampling.max_new_tokens)
    return Sizes(
        E=chunk,
        U=chunk,
        draws_U=False,
        sampled_at_once=sampling.batch_size,
        max_tokens=sampling.max_tokens,
        vocab_chunk=sampling.vocab_chunk,
        measuring=precision.measuring,
        updating=precision.measuring,
        sampling=precision.sampling,
    )
