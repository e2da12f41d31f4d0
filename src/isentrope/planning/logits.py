"""Bytes of the logits that a pass holds, by the arrays of their size that it has at once.

Scores and forward mode visit the vocabulary in chunks (`policy.token_statistics`). A head that is
frozen and linear is differentiated by hand (`policy.head`), and distributions are compared
(`policy.chi_square`), over the whole vocabulary. Arrays were counted where they are made:
tests/planning/test_logits.py compares the bytes of each pass with those that a device holds.
"""

from dataclasses import dataclass
from typing import Any

from isentrope.models.architecture import text_config
from isentrope.planning.memory import language_model
from isentrope.policy.chi_square import LOGITS_COMPARED
from isentrope.policy.head import is_frozen_linear
from isentrope.policy.token_statistics import LOGITS_HELD

SCORED = 4.5
"""Arrays of a chunk while tokens are scored: logits, the same shifted, their exponentials, and the
product of both; half of one is left of the chunk before."""

WITH_VARIANCES = 9
"""The same where the variance of a log-probability is computed beside it."""

ALONG = 12
"""The same for every order of derivatives along one direction."""

OF_ENTROPIES = 8
"""Arrays of the whole vocabulary, in the type of the weights, where entropies go back by hand."""

OF_LOGPROBS = 4.5
"""The same where log-probabilities alone do."""

IN_GRAPH = 6
"""Arrays of the whole vocabulary that a graph keeps where the head is trained, and each direction
of forward mode through it."""

COMPARED = 8
"""Arrays of the whole vocabulary while two distributions are compared; two are the reference."""

REMAINDER = 3
"""More of them where what is beyond the second order is compared too."""

MOST_ARRAYS = 28
"""No pass has more arrays at once: four directions through a head that is trained."""


@dataclass(frozen=True)
class HeadMemory:
    """Counts the bytes of logits that passes of a model hold.

    Attributes:
        model: On any device.
        chunk: Vocabulary entries at a time (`sampling.vocab_chunk`).
        softmax_size: Bytes of a number of `precision.entropy_dtype`.
        size: Bytes of a number of the weights.
        held: Logits that are held at once (`logits_held`).
        on_card: Whether distributions are compared as many at a time as are held.
    """

    model: Any
    chunk: int
    softmax_size: int
    size: int
    held: int
    on_card: bool

    @property
    def vocabulary(self) -> int:
        """Vocabulary entries."""
        return int(text_config(language_model(self.model)).vocab_size)

    @property
    def _by_hand(self) -> bool:
        return is_frozen_linear(language_model(self.model).get_output_embeddings())

    def _numbers(self, tokens: int, columns: int) -> int:
        """Numbers of one array of so many columns."""
        return min(tokens * columns, max(self.held, columns))

    def _in_chunks(self, tokens: int) -> int:
        """Bytes of one array of a chunk."""
        columns = min(self.vocabulary, self.chunk)
        return self.softmax_size * self._numbers(tokens, columns)

    def _in_graph(self, tokens: int) -> int:
        """Bytes of one array of all chunks, which a graph keeps of the tokens of a checkpoint."""
        columns = min(self.vocabulary, self.chunk)
        rows = min(tokens, max(1, LOGITS_HELD // columns))
        return self.softmax_size * rows * self.vocabulary

    def of_scores(self, tokens: int, *, variances: bool = False) -> int:
        """While so many tokens are scored, with the variances of log-probabilities or without."""
        arrays = WITH_VARIANCES if variances else SCORED
        return int(arrays * self._in_chunks(tokens))

    def of_series(self, tokens: int, order: int) -> int:
        """While they are differentiated along one direction, to an order."""
        return ALONG * order * self._in_chunks(tokens)

    def of_differences(self, tokens: int, size: int, order: int) -> int:
        """While derivatives of so many tokens are compared with differences.

        Args:
            tokens: Number of response tokens.
            size: Bytes of a number of the weights meanwhile.
            order: Of the derivatives.

        Returns:
            Bytes; torch makes tangents of 0 of a chunk of the output embedding.
        """
        columns = min(self.vocabulary, self.chunk)
        width = int(text_config(language_model(self.model)).hidden_size)
        return order * size * columns * width + self.of_series(tokens, order)

    def of_directions(self, tokens: int, directions: int) -> int:
        """While they are differentiated along several directions at once."""
        if self._by_hand:
            return max(self.of_scores(tokens), self.of_gradient(tokens, entropies=True))
        return int((SCORED + IN_GRAPH * directions) * self._in_chunks(tokens))

    def of_gradient(self, tokens: int, *, entropies: bool) -> int:
        """While a sum over them is differentiated by θ."""
        if not self._by_hand:
            return IN_GRAPH * self._in_graph(tokens)
        arrays = OF_ENTROPIES if entropies else OF_LOGPROBS
        return int(arrays * self.size * self._numbers(tokens, self.vocabulary))

    def of_comparison(self, tokens: int, *, remainder: bool) -> int:
        """While their distributions at θ + ηv are compared with those at θ."""
        numbers = self._numbers(tokens, self.vocabulary)
        at_once = numbers if self.on_card else min(numbers, LOGITS_COMPARED)
        compared = COMPARED + REMAINDER * remainder - 2
        return self.softmax_size * (2 * numbers + compared * at_once) + 2 * self.size * numbers
