"""Clip_B: damp punished tokens that are far less likely than their entropy suggests.

    S_ik = π_ik (H_ik + s_ik),     z = S − S̄
    c'_ik = (1 − x) c_ik where A_i < 0 and z_ik < −μ σ_z

Mean and standard deviation are over the tokens of the batch. If a step moved the logit of the
sampled token alone, S_ik would be the entropy that the position loses per unit of an increase of
that logit, and gains per unit of a decrease.
Source: agentscope-ai/Trinity-RFT, `clipb_advantage.py` (arXiv 2602.03392); μ = 2.5, x = 1.

Different here: the source clears the response mask, so that the denominator of a token mean
shrinks too; here the denominators stay. μ is in standard deviations of the batch, so it does not
depend on the scale of the advantages.
"""

from isentrope.attribution.proxies.proxies import discriminator
from isentrope.control.base import Positive, Rewritten, Share, TokenRule, options


@options
class ClipB(TokenRule):
    """Damp punished tokens of low S.

    Attributes:
        strength: x, the share of their weight that they lose.
        mu: μ.
    """

    strength: Share = 1.0
    mu: Positive = 2.5

    def apply(self, tokens, strength):
        """Damp tokens."""
        mask = tokens.mask
        S = discriminator(tokens.logprobs, tokens.entropies)
        z = S - S[mask].mean()
        low = mask & (tokens.token_advantages < 0) & (z < -self.mu * z[mask].std())
        return Rewritten(tokens.weights * (1 - strength * low.double()))
