"""What a result says of training where its files and its batch do not show everything."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from isentrope.checkpoint.files import TRAINING_ARGS
from isentrope.checkpoint.infer.fields import FIELDS
from isentrope.checkpoint.infer.logged_texts import OF_TEXTS, are_logged_texts
from isentrope.checkpoint.infer.step import Use
from isentrope.models.precision import AUTOCAST_FIELDS
from isentrope.nouns.choices import RECORDED
from isentrope.nouns.rollouts import Rollouts
from isentrope.system.one_line import plural

_SHORT = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float16": "float16", "fp16": "float16"}


def template_of(args: Any) -> Mapping[str, Any]:
    """The arguments of the chat template in a live trainer's arguments; empty for none."""
    return getattr(args, "chat_template_kwargs", None) or {}


def notes_on_arguments(
    fields: Mapping[str, Any],
    use: Use,
    uncontrolled: str | None = None,
    drawn: int | None = None,
    trained: int | None = None,
) -> list[str]:
    """Small or unknown differences of training's step and the computed one.

    Args:
        fields: The trainer's arguments; empty where they are not known.
        use: How the step is computed.
        uncontrolled: The objective without the run's control, where the step is that one's.
        drawn: Prompts of U, where it is drawn here.
        trained: Prompts of a step of training, where they are known.

    Returns:
        A sentence on each.
    """
    notes: list[str] = []
    if uncontrolled:
        notes.append(
            "Training ran under a control. The step measured here is that of its objective "
            f"{uncontrolled} without the token weights of the control.",
        )
    for name, kind in AUTOCAST_FIELDS.items():
        if fields.get(name) and use.rounding != kind:
            notes.append(
                f"Training ran under {name} autocast: its gradient is one of rounded products, and "
                "the step measured here is not rounded. In tests v differed by 13 to 16 % at the "
                "first step of Adam and by .6 to 2 % at the fourth. With precision.update_vector: "
                f"{{use_amp: true, amp_dtype: {kind}}} it is rounded too."
            )
    if fields.get("tf32"):
        notes.append(
            "Training ran with TF32, which rounds the inputs of its products to 10 bits on a "
            "GPU that has it: its gradient is one of rounded products, and the step measured "
            "here is not rounded."
        )
    if use.objective == RECORDED or not fields:
        return notes
    if fields.get("use_vllm"):
        notes.append(
            "Training sampled with vLLM: its correction for vLLM's log-probabilities is not in "
            "the step measured here."
        )
    unknown = {n for n, value in fields.items() if value and not n.startswith("_")} - {*FIELDS}
    if unknown:
        notes.append(
            f"{TRAINING_ARGS} sets {', '.join(sorted(unknown))}, which this version does not "
            "know: compare one step with training's own if that changes the loss."
        )
    if drawn is not None and trained is not None and drawn != trained:
        notes.append(
            f"U has {plural(drawn, 'prompt')}, and a step of training has {trained}, whose "
            f"gradient has {'more' if trained < drawn else 'less'} noise "
            f"(batch_config.B_U={trained} draws as many)."
        )
    return notes


def notes_on_batch(arguments: Mapping[str, Any], U: Rollouts, file: str | None) -> Iterator[str]:
    """What a batch does not show of training's.

    Args:
        arguments: The trainer's; empty where they are not known.
        U: The update batch.
        file: The file it is from; None for none.

    Yields:
        A sentence on a log of texts, and on demonstrations that are longer than training's.
    """
    if file is not None and are_logged_texts(file):
        yield f"{file}: {OF_TEXTS}"
    longest = arguments.get("max_length") if "completion_only_loss" in arguments else None
    lengths = [len(p) + len(r) for p, r in zip(U.prompt_ids, U.response_ids, strict=True)]
    if longest and (longer := sum(length > longest for length in lengths)):
        yield (
            f"{longer} of {len(lengths)} demonstrations of U have more than the {longest} tokens "
            f"at which training cut them (max_length of {TRAINING_ARGS}): cut them likewise."
        )


def notes_on_base(
    arguments: Mapping[str, Any], stored: torch.dtype | None, rounding: str | None
) -> Iterator[str]:
    """Whether a base of 16 bits under an adapter rounded training's passes, without autocast.

    Args:
        arguments: The trainer's; empty where they are not known.
        stored: Type of the base's files; None where there is no adapter or no base here.
        rounding: Type that the step's products are rounded to; None for none.

    Yields:
        A sentence where it did, or may have; none where a note on autocast is there.
    """
    if not arguments or stored is None or arguments.get("bf16") or arguments.get("fp16"):
        return
    options = arguments.get("model_init_kwargs") or {}
    requested = str(options.get("dtype", options.get("torch_dtype"))).removeprefix("torch.")
    in_files = _SHORT.get(str(stored).removeprefix("torch."))
    if requested in _SHORT or requested == "auto":
        dtype = _SHORT.get(requested, in_files)
        loading = f"Training loaded the base under the adapter in {dtype} (model_init_kwargs): its"
    elif requested == "None":
        dtype = in_files
        loading = (
            f"The files of the base under the adapter are in {dtype}. Where training loaded it so "
            "(transformers does, and TRL loads a model that is named in float32), its"
        )
    else:
        return
    if dtype is not None and rounding != dtype:
        yield (
            f"{loading} passes were rounded, and the step measured here is not. In tests v "
            "differed by 11 % at the first step of Adam and by 2 % at the second."
        )
