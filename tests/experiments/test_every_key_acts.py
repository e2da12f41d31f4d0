"""Every key of the configuration changes what is measured, asked for, or written."""

import json
import shutil

import pytest

from isentrope.experiments import batches, checkpoints, config_stages, preparation
from isentrope.experiments.attribution import kernel as kernel_verb
from isentrope.experiments.attribution.audit import find_audit
from isentrope.experiments.attribution.influence import find_influence
from isentrope.experiments.attribution.kernel import find_kernel
from isentrope.experiments.attribution.noise import find_noise
from isentrope.experiments.attribution.run import run_verb
from isentrope.experiments.attribution.trial import find_trial
from isentrope.experiments.config_io import all_keys, load_config
from isentrope.experiments.measure import measure
from isentrope.rollouts import Rollouts
from isentrope.sampling.tasks.addition import character_tokenizer
from tests.tiny_checkpoint import PROMPTS, in_bfloat16, settings, write_chatty, write_prompts

QUICK = ["batch_config.allow_overlap=true", "estimator.order=1", "estimator.eta_list=[1e-3]"]
LOGGED = [*QUICK, "detailed_logging.level=debug"]
SAMPLED = [
    *QUICK,
    "batch_config.U_dataset_name=prompts",
    "batch_config.U_dataset_path=@/prompts.jsonl",
]
COLLAPSE = [*QUICK, "estimator.eta_list=[0.2, 0.3, 0.5]", "batch_config.B_E=40"]
SWEPT = [*QUICK, "estimator.eta_list=[1e-4, 1e-3]"]
ANY_U = "estimator.ignore_training_settings=[stale_batch]"
STALE = [*QUICK, ANY_U, "batch_config.U_file=@/stale.parquet", "analysis.tokens=false"]
CHAT = [*QUICK, "checkpoint.checkpoint_path=@/chatty/step_4"]
TEMPLATE = [  # of a given U: a policy that never saw a template may find no informative group
    *CHAT,
    "batch_config.chat_template=true",
    "batch_config.U_file=@/four.parquet",
    ANY_U,
]
SHORT = [*QUICK, "checkpoint.checkpoint_path=@/short"]
TRAINED = [*QUICK, "checkpoint.checkpoint_path=@/trained", "sampling.temperature=0.7"]
TF32 = [*QUICK, "precision.allow_tf32=true"]

# key → (settings to compare with, another value); @ stands for the folder of checkpoints.
CHANGES = {
    "checkpoint.checkpoint_path": (QUICK, "@/checkpoint-8"),
    "checkpoint.optimizer_path": (QUICK, "@/checkpoint-8/optimizer.pt"),
    "checkpoint.base_model": (QUICK, "@/base"),
    "checkpoint.trainable": (QUICK, "['*lora_B*']"),
    "checkpoint.master_weights": (SHORT, "true"),
    "checkpoint.device_map": (QUICK, "cuda:7"),
    "checkpoint.quantization": ([*QUICK, "precision.runtime_dtype=float32"], "8bit"),
    "batch_config.dataset_name": (
        ["batch_config.dataset_path=null", "batch_config.dataset_name=addition", *SAMPLED[3:]],
        "addition_chat",
    ),
    "batch_config.dataset_options": (
        ["batch_config.dataset_path=null", "batch_config.dataset_name=addition", *SAMPLED[3:]],
        "{limit: 40}",
    ),
    "batch_config.dataset_path": (QUICK, "@/others.jsonl"),
    "batch_config.dataset_options": (
        ["batch_config.dataset_path=null", "batch_config.dataset_name=addition", *SAMPLED[3:]],
        "{digits: 1}",
    ),
    "batch_config.U_dataset_name": (QUICK, "addition"),
    "batch_config.U_dataset_path": (QUICK, "@/others.jsonl"),
    "batch_config.chat_template": (CHAT, "true"),
    "batch_config.system_prompt": (TEMPLATE, "1+"),
    "batch_config.chat_template_kwargs": (TEMPLATE, "{twice: true}"),
    "batch_config.E_split": (QUICK, "train"),
    "batch_config.U_split": (QUICK, "test"),
    "batch_config.B_E": (QUICK, "9"),
    "batch_config.B_U": (QUICK, "2"),
    "batch_config.G": (QUICK, "5"),
    "batch_config.fixed_prompts": (QUICK, "true"),
    "batch_config.allow_overlap": (QUICK, "false"),
    "batch_config.E_file": (QUICK, "@/hand.jsonl"),
    "batch_config.U_file": (QUICK, "@/hand.jsonl"),
    "batch_config.save_batches": (QUICK, "true"),
    "batch_config.seed": (QUICK, "5"),
    "batch_config.redraw_limit": (QUICK, "0"),
    "batch_config.repeats": (QUICK, "2"),
    "batch_config.first_repeat": (QUICK, "1"),
    "estimator.eta_sweep": (SWEPT, "false"),
    "estimator.single_eta": (QUICK, "2e-3"),
    "estimator.eta_list": (QUICK, "null"),
    "estimator.functional": (QUICK, "per_sequence"),
    "estimator.method": (QUICK, "sequence"),
    "estimator.order": (QUICK, "2"),
    "estimator.rounded_step": (SHORT, "true"),
    "estimator.confidence": (QUICK, "0.5"),
    "estimator.resample_collapsed": (COLLAPSE, "true"),
    "estimator.objective": (QUICK, "grpo"),
    "estimator.advantages": (QUICK, "rloo"),
    "estimator.max_grad_norm": (QUICK, "1e-4"),
    "estimator.max_response_length": (QUICK, "30"),
    "estimator.micro_batch": ([*QUICK, "estimator.objective=bnpo"], "4"),
    "estimator.ignore_training_settings": (TRAINED, "[sampling.temperature]"),
    "precision.runtime_dtype": (QUICK, "float32"),
    "precision.entropy_dtype": (QUICK, "float32"),
    "precision.allow_tf32": (QUICK, "true"),
    "precision.matmul_precision": (TF32, "high"),
    "precision.update_vector": (QUICK, "bfloat16"),
    "precision.sampler_dtype": (QUICK, "bfloat16"),
    "sampling.temperature": (QUICK, "0.7"),
    "sampling.max_new_tokens": (QUICK, "1"),
    "sampling.batch_size": (QUICK, "3"),
    "sampling.top_k": (QUICK, "50"),
    "sampling.top_p": (QUICK, "0.9"),
    "sampling.max_tokens": (QUICK, "64"),
    "sampling.vocab_chunk": (QUICK, "7"),
    "detailed_logging.enabled": (QUICK, "false"),
    "detailed_logging.level": (QUICK, "minimal"),
    "detailed_logging.log_sequences": (QUICK, "true"),
    "detailed_logging.log_tokens": (QUICK, "true"),
    "detailed_logging.log_raw_tensors": (LOGGED, "false"),
    "detailed_logging.output_directory": (QUICK, "@/elsewhere"),
    "detailed_logging.compress": (LOGGED, "true"),
    "detailed_logging.max_files": (
        [*QUICK, "checkpoint.checkpoint_path=[@/step_4, @/checkpoint-8]"],
        "1",
    ),
    "output.directory": (QUICK, "another"),
    "output.log_level": (QUICK, "WARNING"),
}
VERBS = {
    "influence": find_influence,
    "kernel": find_kernel,
    "noise": find_noise,
    "audit": find_audit,
    "try": find_trial,
}
TASK = [  # of four prompts, as a noise scale needs
    *QUICK,
    "batch_config.dataset_name=addition",
    "batch_config.dataset_path=null",
    "batch_config.U_file=@/four.parquet",
    ANY_U,
    "batch_config.B_U=8",
]
TRIED = [*QUICK, "trial.controls=[clip_cov]", "trial.strengths=[1.0]", "trial.size=16"]
# key → (verb, settings to compare with, another value)
ATTRIBUTION = {
    "estimator.off_policy": ("influence", STALE, "true"),
    "estimator.clip": ("influence", [*STALE, "estimator.off_policy=true"], "null"),
    "analysis.tokens": ("influence", QUICK, "false"),
    "analysis.reward": ("influence", QUICK, "false"),
    "analysis.groups": ("influence", QUICK, "3"),
    "analysis.overlap": (
        "influence",
        [*QUICK, "analysis.tokens=false", "analysis.groups=3"],
        "u_statistic",
    ),
    "analysis.share_responses": ("influence", QUICK, "2"),
    "analysis.passes": ("influence", [*QUICK, "analysis.tokens=false"], "one_by_one"),
    "analysis.top": ("audit", QUICK, "[0.5]"),
    "analysis.draws": ("audit", QUICK, "20"),
    "analysis.supervised": ("noise", TASK, "true"),
    "fisher_kernel.blocks": ("kernel", QUICK, "[EU]"),
    "fisher_kernel.preconditioned": ("kernel", QUICK, "false"),
    "fisher_kernel.memory_gb": ("kernel", QUICK, "1e-4"),
    "fisher_kernel.storage": ("kernel", QUICK, "int8"),
    "fisher_kernel.where": ("kernel", QUICK, "disk"),
    "fisher_kernel.sketch": ("kernel", QUICK, "64"),
    "fisher_kernel.rank": ("kernel", QUICK, "1"),
    "fisher_kernel.clusters": ("kernel", QUICK, "2"),
    "fisher_kernel.right_above": ("kernel", QUICK, "-1"),
    "fisher_kernel.second_order": ("kernel", QUICK, "true"),
    "trial.controls": ("try", TRIED, "[w_reinforce]"),
    "trial.strengths": ("try", TRIED, "[0.5]"),
    "trial.options": ("try", TRIED, "{clip_cov: {bounds: published}}"),
    "trial.size": ("try", [*TRIED, "trial.controls=[influence]"], "20"),
    "trial.random_masks": ("try", TRIED, "false"),
    "trial.change": ("try", [*TRIED, "trial.controls=[negative_scale]"], "3e-5"),
}
BEFORE = {}


def test_the_list_is_complete():
    keys = {key for key in all_keys() if "." in key}
    assert set(CHANGES) | set(ATTRIBUTION) == keys
    assert not set(CHANGES) & set(ATTRIBUTION)


@pytest.mark.parametrize("key", CHANGES)
def test_the_key_acts(key, tiny, tmp_path, monkeypatch, caplog):
    given, value = CHANGES[key]
    prepare(tiny)
    if tuple(given) not in BEFORE:
        before = footprint(tiny, tmp_path / "before", given, monkeypatch, caplog)
        BEFORE[tuple(given)] = before
    changed = [*given, f"{key}={value}"]
    after = footprint(tiny, tmp_path / "after", changed, monkeypatch, caplog)
    assert (after == BEFORE[tuple(given)]) is False
    assert not (refused(after) and refused(BEFORE[tuple(given)])), after[:400]


@pytest.mark.parametrize("key", ATTRIBUTION)
def test_the_key_of_an_attribution_acts(key, tiny, tmp_path, monkeypatch, caplog):
    verb, given, value = ATTRIBUTION[key]
    prepare(tiny)
    before, after = (
        footprint(tiny, tmp_path / name, settings, monkeypatch, caplog, verb)
        for name, settings in (("before", given), ("after", [*given, f"{key}={value}"]))
    )
    assert (after == before) is False
    assert not refused(before), before[:400]
    assert not refused(after), after[:400]


def test_nothing_changes_where_no_key_does(tiny, tmp_path, monkeypatch, caplog):
    prepare(tiny)
    first, second = (
        footprint(tiny, tmp_path / name, LOGGED, monkeypatch, caplog) for name in ("a", "b")
    )
    assert first == second


def prepare(tiny):
    """Data files, and a checkpoint in 16 bits, that changes of settings name."""
    if not (tiny / "short").exists():
        in_bfloat16(tiny / "step_4", tiny / "short")
    write_prompts(tiny / "others.jsonl", PROMPTS[::-1][:12])
    shutil.copytree(tiny / "step_4", tiny / "trained", dirs_exist_ok=True)
    (tiny / "trained" / "contract.json").write_text('{"temperature": 1.0}')
    rows = [
        {"prompt": PROMPTS[i // 3], "response": str(i % 3 + 1), "reward": i % 3} for i in range(12)
    ]
    (tiny / "hand.jsonl").write_text("\n".join(map(json.dumps, rows[:9])))
    four = Rollouts(
        prompt_ids=[encoded(row["prompt"]) for row in rows],
        response_ids=[encoded(row["response"]) for row in rows],
        prompt_index=[i // 3 for i in range(12)],
        sampler_logprobs=[[-0.5]] * 12,  # of a policy that was surer of itself
        rewards=[float(row["reward"]) for row in rows],
    )
    write_chatty(tiny)
    four.save(tiny / "four.parquet")
    four.select(range(9)).save(tiny / "stale.parquet")


def encoded(text):
    return character_tokenizer()(text)["input_ids"]


def footprint(tiny, folder, overrides, monkeypatch, caplog, verb="measure"):
    """Numbers, calls to the rooms below, files and what was said; no echo of the settings."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    caplog.clear()
    calls = []
    with monkeypatch.context() as patch:
        spy(patch, calls, checkpoints.Policy, "from_checkpoint")
        spy(patch, calls, config_stages, "load_task")
        spy(patch, calls, batches, "evaluation_batch", "update_batch", "respond")
        spy(patch, calls, preparation, "at_precision")
        spy(patch, calls, kernel_verb, "fisher_kernel")
        try:
            config = load_config(settings(tiny), [o.replace("@", str(tiny)) for o in overrides])
            run = measure(config) if verb == "measure" else run_verb(verb, VERBS[verb], config)
            results = run.results
        except Exception as error:
            results = [{"error": str(error)}]
    for result in results:
        for echo in ("timing", "provenance", "estimator"):
            result.pop(echo, None)
    places = (folder, tiny / "elsewhere")
    files = sorted(
        (place.name * (place != folder), p.relative_to(place).parts[0].split("_20")[0], kind(p))
        for place in places
        for p in place.rglob("*")
        if p.is_file()
    )
    shutil.rmtree(tiny / "elsewhere", ignore_errors=True)
    return json.dumps([results, calls, files, caplog.messages], default=plain)


def refused(said):
    return said.startswith('[[{"error"')


def kind(path):
    """A file's name without times; for logs also what they hold."""
    said = path.name.split("_20")[0]
    return said + str(sorted(json.loads(path.read_text()))) if path.suffix == ".json" else said


def plain(value):
    """Arguments that are settings; objects are named by their kind."""
    return vars(value) if type(value).__name__ == "Precision" else type(value).__name__


def spy(patch, calls, owner, *names):
    for name in names:
        original = getattr(owner, name)

        def wrapper(*args, original=original, name=name, **kwargs):
            calls.append([name, [a for a in args[1:] if not isinstance(a, list)], kwargs])
            return original(*args, **kwargs)

        patch.setattr(owner, name, wrapper)
