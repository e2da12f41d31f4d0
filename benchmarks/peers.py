"""Other ways to the inner products of two batches' gradients, for `benchmarks.kernel`.

`naive` and `mapped` are what one writes with torch alone. Of other libraries, those installed; they
get what our rows get: the same micro-batches in the same order, log-probabilities of the response
positions only, LoRA factors only, float32, one side held and one streamed.

    bergson      its TraceCollector holds the gradients of E, its Scorer meets those of U layer by
                 layer in the backward pass (InMemoryCollector)
    dattri-llm   its TracInAttributor, live, both sides by hooks that form no summed weight
                 gradients (invasive_linear_io)
"""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from isentrope.models.batching import MicroBatch, micro_batches

MODULES = {"bergson": "bergson", "dattri-llm": "dattri_llm"}


def naive(subject: Any, preconditioner: Any = None) -> Tensor:
    """One backward pass a sequence, all gradients kept, then one product."""

    def gradients(batch: MicroBatch) -> Tensor:
        found = torch.autograd.grad(subject.logprob_sums(batch), list(subject.parameters.values()))
        return torch.cat([g.flatten() for g in found])[None]

    def one_by_one(rollouts: Any) -> Tensor:
        single = (micro_batches(rollouts.select([i]), 1)[0] for i in range(len(rollouts)))
        return torch.cat([gradients(batch) for batch in single])

    E, U = one_by_one(subject.E), one_by_one(subject.U)
    if preconditioner is not None:
        U *= torch.cat([preconditioner[n].flatten() for n in subject.parameters])
    return E @ U.T


def mapped(subject: Any) -> Tensor:
    """torch.func's vmap over grad, a micro-batch at a time."""
    lm = subject.policy.causal_lm
    theta = {n: p.detach() for n, p in lm.model.named_parameters() if p.requires_grad}

    def score(theta, ids, columns, targets, mask):
        given = {"input_ids": ids[None], "use_cache": False}
        hidden = functional_call(lm.model, theta, (), given)[0][0, columns]
        log_p = lm.lm_head(hidden).log_softmax(-1)
        return (log_p.gather(1, targets[:, None])[:, 0] * mask).sum()

    each = vmap(grad(score), in_dims=(None, 0, 0, 0, 0))

    def gradients(batch: MicroBatch) -> Tensor:
        found = each(theta, batch.input_ids, *_padded(batch))
        return torch.cat([g.flatten(1) for g in found.values()], 1)

    with sdpa_kernel(SDPBackend.MATH):  # the fused kernel has no batching rule
        rows = {s: torch.cat([gradients(b) for b in subject.batches[s]]) for s in "EU"}
    return _in_order(subject, rows["E"] @ rows["U"].T)


def _padded(batch: MicroBatch) -> tuple[Tensor, Tensor, Tensor]:
    """(b, t) columns, targets and mask of a micro-batch's predicted tokens."""
    shape = len(batch.sequences), int(batch.positions.max()) + 1
    columns, targets = torch.zeros(2, *shape, dtype=torch.long)
    mask = torch.zeros(shape)
    where = batch.rows, batch.positions
    columns[where], targets[where], mask[where] = batch.columns, batch.targets, 1.0
    return columns, targets, mask


def _in_order(subject: Any, found: Tensor) -> Tensor:
    """(n_E, n_U) from rows and columns in the order of the micro-batches."""
    E, U = (torch.cat([b.sequences for b in subject.batches[s]]) for s in "EU")
    out = torch.empty_like(found)
    out[E[:, None], U] = found
    return out


def label(name: str) -> str:
    """The name with the version, or what the table says instead of numbers."""
    if importlib.util.find_spec(MODULES[name]) is None:
        return f"{name}: not installed"
    return f"{name} {version(name)}"


def scorers(subject: Any) -> dict[str, Callable[[], Tensor]]:
    """Functions that compute the (n_E, n_U) matrix, by label; empty where nothing is installed."""
    known = {"bergson": bergson, "dattri-llm": dattri}
    return {
        label(name): lambda make=make: make(subject)
        for name, make in known.items()
        if importlib.util.find_spec(MODULES[name]) is not None
    }


def bergson(subject: Any) -> Tensor:
    """Hold E's gradients by module, score U's against them."""
    from bergson.collector.gradient_collectors import TraceCollector
    from bergson.collector.in_memory_collector import InMemoryCollector
    from bergson.config import IndexConfig
    from bergson.score.score_writer import InMemorySequenceScoreWriter
    from bergson.score.scorer import Scorer
    from datasets import Dataset

    model, cpu = subject.policy.model, torch.device("cpu")
    modules = {name.removesuffix(".weight") for name in subject.parameters}
    common = {"model": model, "target_modules": modules}
    held = TraceCollector(**common, device=cpu, dtype=torch.float32)
    _bergson_passes(subject, "E", held)
    writer = InMemorySequenceScoreWriter(subject.case.n_U, subject.case.n_E)
    queries = {name: torch.cat(parts) for name, parts in held.mod_grads.items()}
    collector = InMemoryCollector(
        **common,
        data=Dataset.from_dict({"index": list(range(subject.case.n_U))}),
        cfg=IndexConfig(run_path="unused"),
        scorer=Scorer(queries, sorted(modules), writer, cpu, torch.float32),
    )
    _bergson_passes(subject, "U", collector)
    order = torch.cat([batch.sequences for batch in subject.batches["U"]])
    return _in_order(subject, writer.scores[order].T)


def _bergson_passes(subject: Any, side: str, collector: Any) -> None:
    for batch in subject.batches[side]:
        with collector.with_batch(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # modules whose input needs no gradient
            subject.logprob_sums(batch).backward()
        subject.policy.model.zero_grad()
        losses = torch.zeros(len(batch.sequences))
        collector.process_batch(batch.sequences.tolist(), losses=losses)


def dattri(subject: Any) -> Tensor:
    """TracIn at the parameters the model has; a data set item is a micro-batch."""
    from dattri_llm import AttributionArguments, AttributionTask, HookManagerConfig

    batches = subject.batches
    decoder = subject.policy.causal_lm.model
    factors = {id(p) for p in subject.parameters.values()}
    inside = [n for n, m in decoder.named_modules() if id(getattr(m, "weight", None)) in factors]
    hooks = HookManagerConfig(hook_types=dict.fromkeys(inside, "invasive_linear_io"))
    task = AttributionTask(lambda model, batch: subject.logprob_sums(batch["batch"]), decoder)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = AttributionArguments(
            output_dir=folder,
            use_cpu=True,
            dataloader_pin_memory=False,
            per_device_train_batch_size=max(len(b.sequences) for b in batches["U"]),
        )
        attributor = _micro_batched()(arguments, task=task)
        found = attributor.attribute(batches["U"], batches["E"], hook_config=hooks)
    return _in_order(subject, found.scores.T)


def _micro_batched() -> Any:
    """TracInAttributor whose streams take ready micro-batches instead of padding to the longest."""
    from dattri_llm import TracInAttributor
    from dattri_llm.gradient.streaming import GradientStreamer

    class MicroBatched(TracInAttributor):
        def _stream(self, batches: Any, **options: Any) -> Any:
            task = self.require_task("attribute")
            return GradientStreamer(
                task.model,
                batches,
                self.args,
                batch_size=1,
                loss_fn=task.loss_func,
                collate_fn=lambda items: {"input_ids": items[0].input_ids, "batch": items[0]},
                **options,
            )

        def generate_train_rep(self, batches: Any, **options: Any) -> Any:
            return self._stream(
                batches,
                checkpoint_step=options["checkpoint_step"],
                config=options["hook_config"],
            )

        def generate_test_rep(self, batches: Any, **options: Any) -> Any:
            return self._stream(
                batches,
                checkpoint_step=options["checkpoint_step"],
                hook_manager=options["hook_manager"],
                forward_model=options["forward_model"],
            )

    return MicroBatched
