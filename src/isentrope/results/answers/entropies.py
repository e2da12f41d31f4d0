"""What `isentrope entropies` answers: which definition of entropy a trainer logged."""

from collections.abc import Iterator
from decimal import Decimal

from isentrope.nouns.columns import Column, ends
from isentrope.results.answers.blocks import Printed, Sentence, Table, interval_title
from isentrope.results.results import EntropiesResult
from isentrope.system.formatting import listed

WHICH_LOGGED = "Which entropy was logged?"
WORDS = {
    "per_token": "per token",
    "micro_batch_means": "mean of micro-batches",
    "response_means": "mean of responses",
    "per_response": "per response",
    "surprisal": "surprisal",
    "sampler_surprisal": "surprisal, sampler's",
    "sampler_entropy": "per token, sampler's",
    "without_end": "without end tokens",
    "finished": "finished responses",
    "top_tokens": "top 20 % of tokens",
    "temperature_1": "temperature 1",
    "truncated": "after top-k and top-p",
    "bfloat16": "in bfloat16",
}
"""Definitions in words, by their keys."""


def entropies_sentences(result: EntropiesResult) -> Iterator[Sentence]:
    """Which definitions the logged value agrees with, and whether that tells them apart."""
    if result.logged is None:
        text = "No logged value is known: give --logged, or a trainer_state.json that has it."
        yield Sentence(text, "doubt", WHICH_LOGGED)
        return
    agreeing = [f"“{WORDS[row.definition]}” on {row.batch}" for row in result.rows if row.agrees]
    logged = f"The logged {result.logged:.6g} ({result.logged_from})"
    rounded = 0.5 * 10.0 ** int(Decimal(repr(result.logged)).as_tuple().exponent)
    within = [row for row in result.rows if abs(row.value.value - result.logged) <= rounded]
    if 2 * len(within) > len(result.rows):
        text = (
            f"{logged} has too few digits to tell which was logged: {len(within)} of "
            f"{len(result.rows)} rows round to it. Give more of its digits."
        )
        yield Sentence(text, "doubt", WHICH_LOGGED)
    elif all(row.agrees is None for row in result.rows):
        text = (
            f"{logged} cannot be compared: no row has an interval. Use a larger batch_config.B_U, "
            "or the batch itself as batch_config.U_file."
        )
        yield Sentence(text, "doubt", WHICH_LOGGED)
    elif 2 * len(agreeing) > len(result.rows):
        text = (
            f"{logged} agrees within errors with {len(agreeing)} of {len(result.rows)} rows: this "
            "U is too small to tell which was logged. Use a larger batch_config.B_U, or the batch "
            "itself as batch_config.U_file."
        )
        yield Sentence(text, "doubt", WHICH_LOGGED)
    elif agreeing:
        text = f"{logged} agrees within errors with {listed(agreeing)}."
        yield Sentence(text, question=WHICH_LOGGED)
    else:
        text = f"{logged} agrees within errors with none of the definitions."
        yield Sentence(text, "doubt", WHICH_LOGGED)


def entropies_tables(result: EntropiesResult) -> Printed:
    """The value of each definition, and its difference to the exact one."""
    columns = [
        Column("on", "batch", left=True),
        Column("definition", lambda row: WORDS[row.definition], left=True),
        Column("value", "value"),
        Column(interval_title(result.estimator.confidence), lambda row: ends(row.value), 1),
        Column("minus exact", "difference"),
    ]
    if result.logged is not None:
        columns.append(Column("logged", lambda row: "yes" if row.agrees else ""))
    title = f"{result.name}: entropies in nats; the first row is exact"
    last_on_E = sum(row.batch == "E" for row in result.rows) - 1
    yield Table(title, result.rows, columns, sections={last_on_E})
    yield "  E, U         E is unfiltered, from this policy; U is the update batch"
