"""Log-probabilities and entropies of listed responses, from plain calls of the model.

Each prefix that occurs in them is given to the model once, unpadded, with others of its length:
`model(input_ids).logits`, over the temperature, through `log_softmax`.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from itertools import chain

import torch
from torch import Tensor
from torch.func import functional_call

from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy


class Tree:
    """The prefixes of responses, as a function of the parameters.

    Attributes:
        lengths: (n,) float64 number of tokens T of each response.
    """

    def __init__(self, policy: Policy, rollouts: Rollouts) -> None:
        """Find the prefixes.

        Args:
            policy: Gives the model, its temperature and float64 arithmetic.
            rollouts: n responses.
        """
        self._policy = policy
        self.lengths = torch.tensor([len(r) for r in rollouts.response_ids], dtype=torch.float64)
        shape = (len(rollouts), int(self.lengths.max()))
        self._node, self._token = (torch.zeros(shape, dtype=torch.int64) for _ in range(2))
        self._is_token = torch.zeros(shape, dtype=torch.float64)
        nodes: dict[tuple[int, ...], int] = {}
        pairs = zip(rollouts.prompt_ids, rollouts.response_ids, strict=True)
        for i, (prompt, response) in enumerate(pairs):
            ids = (*prompt.tolist(), *response.tolist())
            for k, token in enumerate(response.tolist()):
                self._node[i, k] = nodes.setdefault(ids[: len(prompt) + k], len(nodes))
                self._token[i, k], self._is_token[i, k] = token, 1.0
        by_length: dict[int, list[tuple[int, ...]]] = {}
        for prefix in nodes:
            by_length.setdefault(len(prefix), []).append(prefix)
        self._inputs = [torch.tensor(prefixes) for prefixes in by_length.values()]
        rank = {prefix: i for i, prefix in enumerate(chain.from_iterable(by_length.values()))}
        self._node = torch.tensor([rank[prefix] for prefix in nodes])[self._node]

    def __call__(self, params: Vector) -> tuple[Tensor, Tensor]:
        """Score the responses.

        Args:
            params: Trainable parameters, by name.

        Returns:
            S = log π and the sum Σ_k H_k of conditional entropies, each (n,) float64, nats.
        """
        policy = self._policy
        with torch.no_grad(), policy.precision.active():
            logits = [
                functional_call(policy.model, params, (), {"input_ids": ids.to(policy.device)})
                .logits[:, -1]
                .cpu()
                for ids in self._inputs
            ]
        log_p = (torch.cat(logits) / policy.temperature).log_softmax(-1)  # (prefixes, v)
        entropy = -(log_p.exp() * log_p).sum(-1)
        chosen = log_p[self._node, self._token]
        return (chosen * self._is_token).sum(-1), (entropy[self._node] * self._is_token).sum(-1)
