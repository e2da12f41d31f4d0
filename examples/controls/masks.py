"""Masks and scales: a mask to tokens of high entropy, and two baselines for every control.

    EntropyMask      c' = (1 − x 1{H < q_.8}) c    TRL `get_high_entropy_mask`, arXiv 2506.01939
    RandomMask       c' = 0 for a random share x of the tokens
    NegativeScale    c' = (1 + x) c where A < 0

Different here: the quantile of `EntropyMask` is of the whole batch, where TRL takes that of a
micro-batch over all GPUs; x = 1 is the published mask. Neither mask determines the
direction in which entropy moves, so they take no target.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from isentrope.control.base import Rewritten, Share, TokenRule, options, without_random_tokens


@options
class EntropyMask(TokenRule):
    """Only tokens of high entropy have full weight ("80/20").

    Attributes:
        strength: x, the share of its weight that any other token loses.
        quantile: Quantile of the batch's entropies at and above which a token has full weight.
    """

    strength: Share = 1.0
    quantile: Annotated[float, Field(ge=0, lt=1)] = 0.8
    targetable: ClassVar[bool] = False

    def apply(self, tokens, strength):
        """Damp tokens of low entropy."""
        H = tokens.entropies
        low = H[tokens.mask].quantile(self.quantile) > H
        return Rewritten(tokens.weights * (1 - strength * low.double()))


@options
class RandomMask(TokenRule):
    """A random share of the tokens has weight 0.

    Attributes:
        strength: x, the share.
    """

    strength: Share = 0.2
    targetable: ClassVar[bool] = False
    multiples: ClassVar[tuple[float, ...]] = (0.1, 0.25, 1.0, 2.5, 4.0)

    def apply(self, tokens, strength):
        """Drop tokens."""
        return Rewritten(without_random_tokens(tokens, tokens.mask, strength))


@options
class NegativeScale(TokenRule):
    """One factor for all responses with a negative advantage.

    Attributes:
        strength: x; the factor is 1 + x.
    """

    strength: Annotated[float, Field(ge=-1)] = 0.5
    two_sided: ClassVar[bool] = True
    multiples: ClassVar[tuple[float, ...]] = (0.5, 1.0, 2.0)

    def apply(self, tokens, strength):
        """Scale negatives."""
        return Rewritten(tokens.weights * (1 + strength * (tokens.token_advantages < 0).double()))
