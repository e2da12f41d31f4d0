"""The policy of the task `compose`: a transformer of .1 M parameters for short responses.

    tokens   0–9 digits, 10 '>', 11 '.', 12–15 maps, 16 the blank slot; 0–11 can be sampled
    prompt   6 tokens, two slots for maps, three digits, '>'
    response at most 8 tokens, it ends with '.'; what follows the end is filled with '.'

The responses to a prompt share its keys and values, equal responses and equal prefixes are computed
once, and responses of four tokens are scored apart from longer ones. In a step of RL most are that
short and few are distinct, so it costs about an eighth of the padded batch.

Shapes: p prompts, n responses, t tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHAIN, END = 10, 11
OUTPUTS, MAPS, BLANK = 12, 12, 16
TOKENS = 17
PROMPT, RESPONSE, SHORT = 6, 8, 4
STRATEGY = 3
"""The position of a response at which '>' or '.' decides between a chain and an answer."""

Past = list[tuple[Tensor, Tensor]]
"""Keys and values per layer, (n, heads, t, width)."""


class Block(nn.Module):
    """Attention, then two linear layers, each with a norm before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(
        self, x: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Outputs (n, t, width), and the keys and values of all tokens so far."""
        n, t, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(n, t, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mask = None
        if past is not None:
            before = past[0].shape[2]
            key, value = (torch.cat(pair, 2) for pair in zip(past, (key, value), strict=True))
            if t > 1:
                mask = torch.ones(t, before + t, dtype=torch.bool).tril(before)
        causal = past is None and t > 1
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x)))), (key, value)


class Policy(nn.Module):
    """A causal transformer over prompts and responses."""

    def __init__(self, seed: int = 0, width: int = 64, layers: int = 2, heads: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.position = nn.Embedding(PROMPT + RESPONSE, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, OUTPUTS, bias=False)
        generator = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                scale = 0.05 if isinstance(module, nn.Linear) else 0.1
                nn.init.normal_(module.weight, 0.0, scale, generator=generator)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, past: Past | None = None) -> tuple[Tensor, Past]:
        """Logits of the next token.

        Args:
            tokens: (n, t) token ids.
            past: Keys and values of the tokens before them; None where they begin the prompt.

        Returns:
            (n, t, 12) logits, and the keys and values of all tokens so far.
        """
        begin = 0 if past is None else past[0][0].shape[2]
        x = self.embedding(tokens) + self.position.weight[begin : begin + tokens.shape[1]]
        kept: Past = []
        for i, block in enumerate(self.blocks):
            x, pair = block(x, None if past is None else past[i])
            kept.append(pair)
        return self.head(self.norm(x)), kept


def select(past: Past, rows: Tensor) -> Past:
    """The keys and values of some rows, or of rows repeated."""
    return [(key[rows], value[rows]) for key, value in past]


@torch.no_grad()
def sample(
    policy: Policy, prompts: Tensor, owner: Tensor, uniforms: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw responses at temperature 1.

    Args:
        policy: The policy.
        prompts: (p, 6) token ids.
        owner: (n,) index of each response's prompt.
        uniforms: (8, n) numbers in [0, 1), one per token; equal numbers give paired responses.

    Returns:
        (n, 8) token ids, filled with '.' after the end, and (n,) lengths with the '.'.
    """
    logits, past = policy(prompts)
    last, node, rows = logits[:, -1], owner, torch.arange(len(owner))  # a node is a prefix
    responses = torch.full((len(owner), RESPONSE), END)
    lengths = torch.full((len(owner),), RESPONSE)
    for t in range(RESPONSE):
        below = last.softmax(-1).cumsum(-1)[node]
        token = (below < uniforms[t, rows, None] * below[:, -1:]).sum(-1)
        responses[rows, t] = token
        on = token != END
        lengths[rows[~on]] = t + 1
        if t + 1 == RESPONSE or not on.any():
            break
        rows = rows[on]
        pairs, node = (node[on] * OUTPUTS + token[on]).unique(return_inverse=True)
        logits, past = policy(pairs[:, None] % OUTPUTS, select(past, pairs // OUTPUTS))
        last = logits[:, -1]
    return responses, lengths


def score(
    policy: Policy, prompts: Tensor, owner: Tensor, responses: Tensor, lengths: Tensor
) -> Tensor:
    """Logits at every position of given responses (teacher forcing).

    Args:
        policy: The policy.
        prompts: (p, 6) token ids.
        owner: (n,) index of each response's prompt.
        responses: (n, 8) token ids.
        lengths: (n,) tokens of each, with the '.'.

    Returns:
        (n, 8, 12) logits of each token given those before it; 0 after the end of a short response.
    """
    keys = torch.cat([owner[:, None], responses], 1)
    unique, which = keys.unique(dim=0, return_inverse=True)
    owner, responses = unique[:, 0], unique[:, 1:]
    lengths = torch.empty(len(unique), dtype=lengths.dtype).index_copy_(0, which, lengths)
    first, past = policy(prompts)
    found, order = [], []
    for short in (True, False):
        rows = ((lengths <= SHORT) == short).nonzero()[:, 0]
        if len(rows) == 0:
            continue
        width = SHORT if short else RESPONSE
        at = owner[rows]
        later, _ = policy(responses[rows, : width - 1], select(past, at))
        logits = torch.cat([first[at, -1:], later], 1)
        found.append(F.pad(logits, (0, 0, 0, RESPONSE - width)))
        order.append(rows)
    return torch.cat(found)[torch.cat(order).argsort()][which]


def token_mask(lengths: Tensor) -> Tensor:
    """(n, 8) 1 where there is a token, float32."""
    return (torch.arange(RESPONSE) < lengths[:, None]).float()
