"""What each key of a measurement must do: change the numbers, the files or the calls, or refuse.

An entry is (settings to compare with, another value of the key), followed by the function that is
called with other arguments, or by the noun that the refusal must name. `Of` gives a verb other than
`measure`. @ stands for the folder of checkpoints.
"""

from typing import NamedTuple

from tests.control.examples import INFLUENCE_CLIP, NEGATIVE_SCALE


class Of(NamedTuple):
    """Settings for a verb other than measure."""

    verb: str
    given: tuple[str, ...]


FAST = ("batch_config.allow_overlap=true", "estimator.order=0", "estimator.eta_list=[1e-3]")
FIRST_ORDER = (*FAST, "estimator.order=1")
LOGGED = (*FAST, "detailed_logging.level=debug")
BY_HAND = (*FAST, "batch_config.E_file=@/hand.jsonl")  # so that only U loads a task
ADDITION = (*FAST, "batch_config.dataset_path=null", "batch_config.dataset_name=addition")
UNEVEN = (*FAST, "estimator.objective=bnpo", "batch_config.U_file=@/hand.jsonl")
COLLAPSE = (*FAST, "estimator.eta_list=[0.5]", "batch_config.B_E=40")
SWEPT = (*FAST, "estimator.eta_list=[1e-4, 1e-3]")
ANY_U = "estimator.ignore_training_settings=[stale_batch]"
STALE = Of(
    "influence",
    (*FAST, ANY_U, "batch_config.U_file=@/stale.parquet", "analysis.tokens=false"),
)
CHAT = (  # of a given U: a policy that never saw a template may find no informative group
    *FAST,
    "checkpoint.checkpoint_path=@/chatty/step_4",
    "batch_config.U_file=@/four.parquet",
    ANY_U,
)
TEMPLATE = (*CHAT, "batch_config.chat_template=true")
SHORT = (*FAST, "checkpoint.checkpoint_path=@/short")
TRAINED = (*FAST, "checkpoint.checkpoint_path=@/trained", "sampling.temperature=0.7")
MIXED = (*FAST, "checkpoint.checkpoint_path=[@/trained, @/cooler]")
TF32 = (*FAST, "precision.allow_tf32=true")
TWO = (*LOGGED, "checkpoint.checkpoint_path=[@/step_4, @/checkpoint-8]")
INFLUENCE = Of("influence", (*FAST, "analysis.overlap=independent", "analysis.groups=3"))
SEQUENCES = Of("influence", (*FAST, "analysis.tokens=false"))
KERNEL = Of("kernel", FAST)
AUDIT = Of("audit", (*FAST, "analysis.top=[0.2]", "analysis.draws=10"))
NOISE = Of(  # of four prompts, as a noise scale needs
    "noise",
    (*ADDITION, "batch_config.U_file=@/four.parquet", ANY_U, "batch_config.B_U=8"),
)
VARIANCE = Of("variance", (*FAST, "batch_config.B_E=4"))
ENTROPIES = Of("entropies", (*FAST, "batch_config.B_E=12"))
TRIED = ("trial.controls=[clip_cov]", "trial.strengths=[1.0]", "trial.size=16")
UNMASKED = "trial.random_masks=false"
TRIAL = Of("try", (*FAST, *TRIED))
NEGATIVE = Of("try", (*FAST, *TRIED, UNMASKED, f"trial.controls=['{NEGATIVE_SCALE}']"))
UNSET = Of("try", (*NEGATIVE.given, "trial.strengths=null"))
BY_INFLUENCE = Of("try", (*FAST, *TRIED, UNMASKED, f"trial.controls=['{INFLUENCE_CLIP}']"))
EVERY_VERB = (LOGGED, SEQUENCES, KERNEL, AUDIT, NOISE, VARIANCE, ENTROPIES, TRIAL)

# Both runs complete, and a number of the results differs by more than rounding.
NUMBERS = {
    "checkpoint.checkpoint_path": (FAST, "@/checkpoint-8"),
    "checkpoint.optimizer_path": (FAST, "@/checkpoint-8/optimizer.pt"),
    "batch_config.chat_template": (CHAT, "true"),
    "batch_config.system_prompt": (TEMPLATE, "1+"),
    "batch_config.chat_template_kwargs": (TEMPLATE, "{twice: true}"),
    "batch_config.B_E": (FAST, "9"),
    "batch_config.G_E": (FAST, "2"),
    "batch_config.B_U": (FAST, "2"),
    "batch_config.G": (FAST, "5"),
    "batch_config.fixed_prompts": (FAST, "true"),
    "batch_config.E_file": (FAST, "@/hand.jsonl"),
    "batch_config.U_file": (FAST, "@/hand.jsonl"),
    "batch_config.repeats": (FAST, "2"),
    "estimator.eta_sweep": (SWEPT, "false"),
    "estimator.single_eta": (FAST, "2e-3"),
    "estimator.eta_list": (FAST, "null"),
    "estimator.functional": (FAST, "per_sequence"),
    "estimator.method": (FAST, "sequence"),
    "estimator.order": (FAST, "1"),
    "estimator.confidence": (FAST, "0.5"),
    "estimator.resample_collapsed": (COLLAPSE, "true"),
    "estimator.objective": (FAST, "grpo"),
    "estimator.advantages": (FAST, "rloo"),
    "estimator.max_grad_norm": (FAST, "1e-4"),
    "estimator.max_response_length": (FAST, "30"),
    "estimator.micro_batch": (UNEVEN, "3"),
    "estimator.off_policy": (STALE, "true"),
    "estimator.clip": (Of(STALE.verb, (*STALE.given, "estimator.off_policy=true")), "null"),
    "precision.runtime_dtype": (FAST, "float32"),
    "precision.update_vector": (FAST, "bfloat16"),
    "sampling.temperature": (FAST, "0.7"),
    "sampling.max_new_tokens": (FAST, "1"),
    "analysis.reward": (SEQUENCES, "false"),
    "analysis.price": (FIRST_ORDER, "false"),
    "analysis.position_pattern": (FIRST_ORDER, "^"),
    "analysis.groups": (SEQUENCES, "3"),
    "analysis.overlap": (
        Of(SEQUENCES.verb, (*SEQUENCES.given, "analysis.groups=3")),
        "u_statistic",
    ),
    "analysis.share_responses": (SEQUENCES, "2"),
    "analysis.top": (AUDIT, "[0.5]"),
    "analysis.class_share": (AUDIT, "0.5"),
    "analysis.draws": (AUDIT, "20"),
    "analysis.supervised": (NOISE, "true"),
    "analysis.wanted_error": (VARIANCE, "0.2"),
    "entropies.logged": (ENTROPIES, "3.0"),
    "entropies.micro_batch": (ENTROPIES, "2"),
    "entropies.top_k": (ENTROPIES, "2"),
    "entropies.top_p": (ENTROPIES, "0.5"),
    "entropies.bfloat16": (ENTROPIES, "true"),
    "fisher_kernel.blocks": (KERNEL, "[EU]"),
    "fisher_kernel.preconditioned": (KERNEL, "false"),
    "fisher_kernel.storage": (KERNEL, "int8"),
    "fisher_kernel.rank": (KERNEL, "1"),
    "fisher_kernel.clusters": (KERNEL, "2"),
    "fisher_kernel.right_above": (KERNEL, "-1"),
    "fisher_kernel.second_order": (KERNEL, "true"),
    "trial.controls": (TRIAL, "[repo_r]"),
    "trial.strengths": (TRIAL, "[0.5]"),
    "trial.options": (TRIAL, "{clip_cov: {bounds: published}}"),
    "trial.size": (BY_INFLUENCE, "20"),
    "trial.random_masks": (TRIAL, "false"),
}

# Both runs complete with the same numbers, and leave other files, or files of other content.
FILES = {
    "batch_config.save_batches": (FAST, "true"),
    "detailed_logging.enabled": (FAST, "false"),
    "detailed_logging.level": (FAST, "minimal"),
    "detailed_logging.log_sequences": (FAST, "true"),
    "detailed_logging.log_tokens": (FAST, "true"),
    "detailed_logging.log_raw_tensors": (LOGGED, "false"),
    "detailed_logging.output_directory": (FAST, "@/elsewhere"),
    "detailed_logging.compress": (FAST, "true"),
    "detailed_logging.max_files": (TWO, "1"),
    "output.directory": (FAST, "another"),
    "analysis.tokens": (INFLUENCE, "false"),
}

# The function is called with other arguments; each run ends at the call. The numbers of these keys
# may not change, or only on other hardware, or only with what was sampled.
CALLS = {
    "checkpoint.base_model": (FAST, "@/base", "from_checkpoint"),
    "checkpoint.allow_hub": (FAST, "true", "from_checkpoint"),
    "checkpoint.device_map": (FAST, "cuda:7", "from_checkpoint"),
    "checkpoint.verify": (FAST, "false", "from_checkpoint"),
    "checkpoint.quantization": (
        (*FAST, "precision.runtime_dtype=float32"),
        "4bit",
        "from_checkpoint",
    ),
    "batch_config.dataset_name": (ADDITION, "addition_chat", "load_task"),
    "batch_config.dataset_options": (ADDITION, "{limit: 10}", "load_task"),
    "batch_config.dataset_path": (FAST, "@/others.jsonl", "load_task"),
    "batch_config.U_dataset_name": (BY_HAND, "addition", "load_task"),
    "batch_config.U_dataset_path": (BY_HAND, "@/others.jsonl", "load_task"),
    "batch_config.E_split": (FAST, "train", "load_task"),
    "batch_config.U_split": (BY_HAND, "test", "load_task"),
    "batch_config.allow_overlap": (FAST, "false", "update_batch"),
    "batch_config.seed": (FAST, "5", "respond"),
    "batch_config.redraw_limit": (FAST, "0", "update_batch"),
    "batch_config.first_repeat": (FAST, "1", "update_batch"),
    "precision.entropy_dtype": (FAST, "float32", "at_precision"),
    "precision.allow_tf32": (FAST, "true", "at_precision"),
    "precision.matmul_precision": (TF32, "high", "at_precision"),
    "precision.sampler_dtype": (FAST, "bfloat16", "at_precision"),
    "sampling.batch_size": (FAST, "3", "respond"),
    "sampling.max_tokens": (FAST, "64", "from_checkpoint"),
    "sampling.vocab_chunk": (FAST, "7", "from_checkpoint"),
    "output.log_level": (FAST, "WARNING", "setLevel"),
    "analysis.gradient_backend": (KERNEL, "loop", "fisher_kernel"),
    "fisher_kernel.memory_gb": (KERNEL, "1e-4", "fisher_kernel"),
    "fisher_kernel.where": (KERNEL, "disk", "fisher_kernel"),
}

# Only the run with the value is refused, in a sentence with the noun.
REFUSED_WITH = {
    "checkpoint.trainable": (FAST, "['*lora_B*']", r"lora_A"),
    "checkpoint.shard_base": (FAST, "true", r"torchrun"),  # and in test_sharing.py
    "batch_config.U_weighting": (FAST, "difficulty", r"no isentrope_state\.json with pass rates"),
    "sampling.top_k": (FAST, "50", r"top_k=50"),
    "sampling.top_p": (FAST, "0.9", r"top_p=0\.9"),
    "trial.change": (UNSET, "10.0", r"changes entropy by 10"),
}

# Only the run without the value is refused, in a sentence with the noun.
REFUSED_WITHOUT = {
    "checkpoint.master_weights": (SHORT, "true", r"estimator\.rounded_step"),
    "checkpoint.allow_mixed": (MIXED, "true", r"temperature was 1\.0 and 0\.7"),
    "estimator.rounded_step": (SHORT, "true", r"estimator\.rounded_step"),
    "estimator.ignore_training_settings": (
        TRAINED,
        "[sampling.temperature]",
        r"sampling\.temperature",
    ),
}
