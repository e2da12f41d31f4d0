"""Responses by vLLM, where it is installed: the same policy, drawn faster and in another precision.

vLLM draws from the softmax at the sampling temperature, nothing filtered, and reports the
log-probability of each token at that temperature, as our own sampler does. It differs in that its
random numbers have one seed per prompt, and that a response may depend on its batch.
"""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from packaging.version import Version

from isentrope.checkpoint.files import CheckpointFolder
from isentrope.models.base_model import adapter_base
from isentrope.nouns.choices import Decoding
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.sampling.generate import rollouts_of
from isentrope.sampling.prompt import Prompt

# supported versions: those that TRL 1.16 accepts
OLDEST_VERSION = "0.22"
FIRST_UNSUPPORTED_VERSION = "0.32"

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM reserves memory for."""


def require_vllm(checkpoints: Sequence[Path], processes: int) -> None:
    """Refuse settings that vLLM does not support, before any work.

    Args:
        checkpoints: The checkpoints of the evaluation.
        processes: How many processes share the work.

    Raises:
        ImportError: If it is not installed, or in another version.
        ValueError: If several full models or several processes are requested.
    """
    try:
        installed = version("vllm")
    except PackageNotFoundError as error:
        raise ImportError(
            "sampling.engine=vllm, but vllm is not installed: pip install vllm, or set "
            "sampling.engine=transformers."
        ) from error
    supported = Version(OLDEST_VERSION) <= Version(installed) < Version(FIRST_UNSUPPORTED_VERSION)
    if not supported:
        raise ImportError(
            f"sampling.engine=vllm needs vllm from {OLDEST_VERSION} to before "
            f"{FIRST_UNSUPPORTED_VERSION}; {installed} is installed: set "
            "sampling.engine=transformers."
        )
    full = [path for path in checkpoints if not (path / "adapter_config.json").is_file()]
    if full and len(checkpoints) > 1:
        raise ValueError(
            f"sampling.engine=vllm serves one base model with adapters, and {full[0]} is a full "
            "model among several checkpoints: evaluate them one at a time."
        )
    if processes > 1:
        raise ValueError(
            f"sampling.engine=vllm runs in one process, not in {processes}: omit torchrun."
        )


class VllmEngine:
    """A base model in vLLM, answering under the adapter of each checkpoint."""

    def __init__(
        self,
        checkpoint: Path,
        *,
        base_model: str | None,
        allow_hub: bool = False,
        dtype: str,
        temperature: float,
        max_new_tokens: int,
        memory: float,
        seed: int,
    ) -> None:
        """Load the base model.

        Args:
            checkpoint: A full model, or an adapter that names its base and its rank.
            base_model: Base of the adapters, where the one they name is not to be used.
            allow_hub: Whether a base that they name may come from the model hub.
            dtype: Type of the model, "float32" or "bfloat16".
            temperature: Sampling temperature.
            max_new_tokens: Longest response in tokens.
            memory: Share of the GPU's memory to use.
            seed: Fixes the responses, as far as vLLM's arithmetic does not depend on the batch.
        """
        from vllm import LLM  # pyright: ignore[reportMissingImports]

        adapter = CheckpointFolder(checkpoint).adapter
        base = str(checkpoint)
        lora_options: dict[str, Any] = {}
        if adapter:
            base = adapter_base(checkpoint, base_model, allow_hub=allow_hub)
            rank = next(r for r in LORA_RANKS if r >= adapter["r"])
            lora_options = {"enable_lora": True, "max_lora_rank": rank}
        self._llm = LLM(
            model=base,
            dtype=dtype,
            seed=seed,
            gpu_memory_utilization=memory,
            skip_tokenizer_init=True,
            trust_remote_code=False,
            generation_config="vllm",  # not the model's own, which may filter
            logprobs_mode="processed_logprobs",
            **lora_options,
        )
        self._adapters: dict[Path, int] | None = {} if adapter else None
        self._temperature = temperature
        self._max_new_tokens = max_new_tokens
        self._seed = seed

    def respond(
        self,
        policy: Policy,
        checkpoint: Path,
        prompts: Sequence[Prompt],
        first: int,
        samples_per_prompt: int,
        decoding: Decoding,
    ) -> Rollouts:
        """Answer prompts.

        Args:
            policy: The same checkpoint, for its tokenizer and its end of a response.
            checkpoint: Its folder.
            prompts: Encoded prompts.
            first: Number of the first of them in the evaluation, which fixes its seed.
            samples_per_prompt: Responses to each.
            decoding: "sampled" or "greedy".

        Returns:
            The responses, with the log-probabilities they were drawn with where sampled.
        """
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
        from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]

        sampled = decoding == "sampled"
        lora = None
        if self._adapters is not None:
            number = self._adapters.setdefault(checkpoint, len(self._adapters) + 1)
            lora = LoRARequest(f"adapter_{number}", number, str(checkpoint))
        parameters = [
            SamplingParams(
                n=samples_per_prompt,
                temperature=self._temperature if sampled else 0.0,
                top_p=1.0,
                top_k=0,
                min_p=0.0,
                max_tokens=self._max_new_tokens,
                seed=int(np.random.SeedSequence([self._seed, first + i]).generate_state(1)[0]),
                stop_token_ids=list(policy.eos_token_ids) or None,
                logprobs=0,
                detokenize=False,
            )
            for i in range(len(prompts))
        ]
        prompt_ids = [{"prompt_token_ids": list(p.token_ids or ())} for p in prompts]
        outputs = self._llm.generate(prompt_ids, parameters, use_tqdm=False, lora_request=lora)
        answers = [answer for output in outputs for answer in output.outputs]
        index = torch.arange(len(prompts)).repeat_interleave(samples_per_prompt)
        return rollouts_of(
            policy,
            [prompts[i] for i in index.tolist()],
            index,
            response_ids=[torch.tensor(list(answer.token_ids)) for answer in answers],
            sampler_logprobs=[_read_logprobs(answer) for answer in answers] if sampled else None,
            max_new_tokens=self._max_new_tokens,
        )


def _read_logprobs(answer: Any) -> torch.Tensor:
    pairs = zip(answer.token_ids, answer.logprobs, strict=True)
    return torch.tensor([choices[token].logprob for token, choices in pairs], dtype=torch.float64)
