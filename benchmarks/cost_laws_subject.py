"""What cost_laws measures: a model of a size, its batches, and the work of each verb on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

import isentrope as ise
from isentrope.attribution.proxies.proxies import sequence_proxies, token_proxies
from isentrope.checks import Finding, check_instrument, check_sampler
from isentrope.models.batching import micro_batches
from isentrope.policy.gradient import weighted_gradient

VERBS = ("measure", "influence", "kernel", "noise", "audit", "check", "evaluate")
PROMPT, GROUP = 8, 4


@dataclass(frozen=True)
class Size:
    """A model of random weights with LoRA on every linear layer, and its batches E and U."""

    sequences: int = 16
    tokens: int = 16  # of a response
    layers: int = 2
    width: int = 64
    vocabulary: int = 512
    rank: int = 4

    @property
    def key(self) -> str:
        return json.dumps(asdict(self))


BASE = Size()
GROWN = tuple(asdict(BASE))


def grown(name: str) -> list[Size]:
    """The base and three doublings of one size."""
    return [replace(BASE, **{name: getattr(BASE, name) * 2**k}) for k in range(4)]


class Parity:
    """A task of random prompts; a response is correct where its last word has an even number."""

    def __init__(self, prompts: list[torch.Tensor]) -> None:
        self.prompts = [
            ise.Prompt(f"p{k}", token_ids=tuple(ids.tolist())) for k, ids in enumerate(prompts)
        ]

    def reward(self, response_text: str, reference: str | None) -> float:
        return float(int(response_text.split()[-1]) % 2 == 0)


def numbers(vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer whose words are the numbers of the tokens."""
    model = WordLevel({str(k): k for k in range(vocabulary)}, unk_token="0")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model))


class Subject:
    """The verbs' computations at a size, float32; no token ends a response."""

    def __init__(self, size: Size) -> None:
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=size.vocabulary,
            hidden_size=size.width,
            intermediate_size=4 * size.width,
            num_hidden_layers=size.layers,
            num_attention_heads=4,
            num_key_value_heads=4,
        )
        lora = LoraConfig(r=size.rank, target_modules="all-linear")
        model = get_peft_model(Qwen2ForCausalLM(config), lora).eval()
        for name, p in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(p, std=0.02)
        self.policy = ise.Policy(
            model, numbers(size.vocabulary), precision="float32", eos_token_id=(), pad_token_id=0
        )
        self.tokens = size.tokens
        self.E, U = (self._draw(size) for _ in range(2))
        self.task = Parity(self.E.prompt_ids[::GROUP])
        weights = torch.randn(size.sequences).double()
        self.U = U.with_columns(advantages=weights, max_new_tokens=size.tokens)
        parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(parameters)
        self.step = ise.optimizer_step(self.policy, self.U, self.optimizer)
        self.drawn = self.E.with_columns(sampler_logprobs=ise.score(self.policy, self.E).logprobs)

    @staticmethod
    def _draw(size: Size) -> ise.Rollouts:
        def tokens(n: int, length: int) -> list[torch.Tensor]:
            return list(torch.randint(2, size.vocabulary, (n, length)))

        draw = torch.arange(size.sequences // GROUP).repeat_interleave(GROUP)
        prompts = tokens(size.sequences // GROUP, PROMPT)
        responses = tokens(size.sequences, size.tokens)
        return ise.Rollouts([prompts[i] for i in draw], responses, draw)

    def forward(self) -> None:
        """A plain forward pass over E: the unit."""
        lm = self.policy.causal_lm
        with torch.no_grad():
            for batch in micro_batches(self.E, self.policy.max_tokens):
                hidden = lm.model(input_ids=batch.input_ids, use_cache=False)[0]
                lm.lm_head(hidden[batch.rows, batch.columns]).log_softmax(-1)

    def audit(self, table: ise.Influence) -> None:
        """Statistics of all proxies, by token and by sequence, as `isentrope audit` has them."""
        scores, A, draw = table.scores, self.U.advantages, self.U.prompt_index
        measured, parts = table.entropy.tokens, table.entropy.by_group_and_token
        assert scores is not None
        assert measured is not None
        assert parts is not None
        assert A is not None
        one, two = (half.sum(0) for half in parts.tensor_split(2))
        ise.audit(measured, table.acting, draw, token_proxies(scores, A), halves=(one, two))
        halves, every = (one.sum(1), two.sum(1)), torch.ones(len(draw), dtype=torch.bool)
        ise.audit(measured.sum(1), every, draw, sequence_proxies(scores, A), halves=halves)

    def check(self) -> list[Finding]:
        """Step, scorer and sampler; the log-probabilities of E's sampler are the scorer's."""
        p, weights = self.policy, self.step.token_weights
        assert weights is not None
        gradient = weighted_gradient(p, self.U, weights)
        ise.optimizer_step(p, self.U, self.optimizer)
        return [*check_instrument(p, self.drawn, gradient), *check_sampler(p, self.drawn, gradient)]

    def verbs(self, chosen: Collection[str]) -> dict[str, Callable[[], object]]:
        """By name of the row, which begins with that of the verb."""
        p, E, U, step = self.policy, self.E, self.U, self.step
        etas = [1e-6, 1e-5, 1e-4, 1e-3]
        jobs: dict[str, Callable[[], object]] = {
            "measure": lambda: ise.entropy_change(p, E, step.direction, etas, order=2),
            "influence, tokens": lambda: ise.influence(
                p, E, U, step, ise.InfluenceOptions(groups=4)
            ),
            "influence, sequences": lambda: ise.influence(
                p, E, U, step, tokens=False, options=ise.InfluenceOptions(groups=4)
            ),
            "kernel": lambda: ise.fisher_kernel(p, E, U, preconditioner=step.preconditioner),
            "noise": lambda: ise.noise_scale(p, U, token_weights=step.token_weights),
            "check": self.check,
            "evaluate": lambda: ise.evaluate(
                p, self.task, samples_per_prompt=GROUP, max_new_tokens=self.tokens
            ),
        }
        if "audit" in chosen:
            table = ise.influence(p, E, U, step, ise.InfluenceOptions(groups=4))
            jobs["audit"] = lambda: self.audit(
                ise.influence(p, E, U, step, ise.InfluenceOptions(groups=4))
            )
            jobs["audit, statistics"] = lambda: self.audit(table)
        return {name: job for name, job in jobs.items() if name.split(",")[0] in chosen}
