"""Every verb at its smallest, by the command line: what stays while the modules under it move.

A scene is a function of two folders, the frozen checkpoint's and an empty one, which runs commands
and returns the record of what they left. A scene of one command that writes a
run folder is given as that command; under "screen" it has the lines of standard output, and
under "printed" those that `--details` prints.
"""

import hashlib
import json
import re
import warnings
from dataclasses import dataclass

import torch
import yaml
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import torch_save_to_dcp
from typer.testing import CliRunner

from isentrope.cli.console import out
from isentrope.cli.main import app
from tests.golden.printed import everything, lines_of
from tests.golden.record import condensed, record
from tests.tiny_checkpoint import PROMPTS, settings

DOUBLE = {"runtime_dtype": "float64", "entropy_dtype": "float64"}
BATCH = {"B_E": 8, "B_U": 2, "G": 3, "allow_overlap": True, "save_batches": True}
MEASURING = {"batch_config": BATCH, "precision": DOUBLE, "output": {"log_level": "WARNING"}}
STUDY = ("step_4", "checkpoint-8")


def call(*arguments, status=0):
    """Run a command; its standard output."""
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == status, done.output
    assert "…" not in done.stdout
    return done.stdout


def write(folder, content):
    """A configuration file beside the run folder."""
    path = folder / "asked.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@dataclass(frozen=True)
class Command:
    """A verb, the content of its configuration file, and what stands before that file."""

    verb: str
    sections: dict
    options: tuple = ()

    def arguments(self, folder, out):
        """The command line; its configuration is written into the folder."""
        return [self.verb, *self.options, write(folder, self.sections), "--out", out]


def recorded(command):
    """The scene of one command: its run folder's record."""

    def scene(tiny, folder):
        with everything(out) as texts:
            screen = call(*command(tiny, folder).arguments(folder, folder / "run"))
        kept = places(tiny, folder)
        full = "".join(text for text in texts if not text.startswith("  more  "))
        shown = {"screen": lines_of(screen, kept), "printed": lines_of(full, kept)}
        return record(folder / "run", kept) | shown

    return scene


def places(tiny, folder):
    """Folders whose names are other ones in every run."""
    return {str(folder / "run"): "<run>", str(tiny): "<checkpoint>", str(folder): "<folder>"}


def asked(tiny, **sections):
    """A measurement of one checkpoint, with `sections` merged key by key."""
    merged = {k: MEASURING.get(k, {}) | sections.get(k, {}) for k in {**MEASURING, **sections}}
    batch = settings(tiny)["batch_config"] | merged.pop("batch_config")
    return settings(tiny, batch_config=batch, **merged)


def responses(folder):
    """An update batch by hand: no two responses alike, so that no ranks are tied by rounding."""
    texts = ("1", "2", "3", "12", "21", "13", "31", "23", "32", "11", "22", "33")
    rows = [
        {"prompt": PROMPTS[i // 3], "response": text, "reward": (i + i // 3) % 3 / 2}
        for i, text in enumerate(texts)
    ]
    path = folder / "U.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return {"U_file": str(path)}


def measure(tiny, folder):
    """The whole sweep, fresh responses where weights collapse, and the log with its tables."""
    sections = asked(
        tiny,
        estimator={"eta_list": [1e-4, 1e-3, 0.3], "resample_collapsed": True},
        detailed_logging={"level": "debug"},
    )
    return Command("measure", sections)


def study(tiny, folder):
    """Two checkpoints, two update batches at each."""
    paths = {"checkpoint_path": [str(tiny / name) for name in STUDY]}
    sections = asked(
        tiny,
        checkpoint=paths,
        batch_config={"repeats": 2},
        estimator={"eta_list": [1e-3], "order": 1},
        detailed_logging={"enabled": False},
    )
    return Command("measure", sections)


def influence(tiny, folder):
    """Tokens, sequences, reward and shares."""
    analysis = {"share_responses": 2, "overlap": "independent"}
    sections = asked(tiny, batch_config=responses(folder), analysis=analysis)
    return Command("influence", sections)


def kernel(tiny, folder):
    """All blocks and the second-order kernel."""
    options = {"blocks": ["UU", "EU", "FU", "EE"], "second_order": True}
    more = {"fisher_kernel": options, "analysis": {"share_responses": 2}}
    sections = asked(tiny, batch_config=responses(folder), **more)
    return Command("kernel", sections)


def noise(tiny, folder):
    """Noise scales of gradient and entropy."""
    return Command("noise", asked(tiny, batch_config={"B_U": 4}))


def variance(tiny, folder):
    """Every estimator at one learning rate."""
    return Command("variance", asked(tiny, batch_config={"B_E": 16}))


def entropies(tiny, folder):
    """Every definition, and a logged value."""
    options = {
        "logged": 0.53,
        "micro_batch": 2,
        "top_k": 3,
        "top_p": 0.9,
    }  # bfloat16 differs over CPUs
    more = {"entropies": options, "sampling": {"temperature": 0.7}}
    return Command("entropies", asked(tiny, **more))


def audit(tiny, folder):
    """Every proxy against influence."""
    analysis = {"draws": 20, "overlap": "independent"}
    sections = asked(tiny, batch_config=responses(folder), analysis=analysis)
    return Command("audit", sections)


def trial(tiny, folder):
    """Two controls of tokens and the correction of the step."""
    sections = asked(tiny, trial={"size": 16})
    return Command("try", sections, ("clip_cov,examples/controls/masks.py:NegativeScale,budget",))


def check(tiny, folder):
    """The mark of every check, in order; the command writes no file."""
    said = call("check", "--details", write(folder, asked(tiny, batch_config={"B_E": 48})))
    marks = re.findall(r"^ (ok|FAIL|-) +\S", said, re.MULTILINE)
    return {"files": [], "values": {"marks": marks}, "tables": {}}


def plan(tiny, folder):
    """Two verbs: their passes, and what is held without any."""
    verbs = ("--verb", "influence", "--verb", "kernel")
    said = call("plan", write(folder, asked(tiny)), *verbs, "--json", "--memory", "64GB")
    kinds = ("forward", "backward", "forward_mode", "second_order")
    values = {
        plan["verb"]: {term["name"]: term["size"] for term in plan["held"]}
        | {
            f"{part['name']} of {part['batch']}": [part["responses"], *(part[x] for x in kinds)]
            for part in plan["parts"]
        }
        | {"assumptions": plan["assumptions"]}
        for plan in json.loads(said)
    }
    return {"files": [], "values": values, "tables": {}}


def evaluate(tiny, folder):
    """Two checkpoints, sampled and greedy, in two chunks."""
    sections = {
        "checkpoint": {"checkpoint_path": [str(tiny / name) for name in STUDY]},
        "data": {"dataset_name": "prompts", "dataset_path": str(tiny / "prompts.jsonl")},
        "evaluation": {"n_prompts": 6, "samples_per_prompt": 4, "chunk_prompts": 4, "seed": 2},
        "precision": DOUBLE,
        "sampling": {"max_new_tokens": 3},
        "output": {"log_level": "WARNING"},
    }
    return Command("evaluate", sections)


def train(tiny, folder):
    """Steps with probe, control and a clipped gradient; contract, step record and logs."""
    sections = {
        "model": {"path": str(tiny / "base"), "lora_rank": 2, "lora_alpha": 4},
        "data": {"dataset_name": "prompts", "dataset_path": str(tiny / "prompts.jsonl")},
        "sampling": {"max_new_tokens": 3},
        "training": {
            "steps": 2,
            "learning_rate": 1e-3,
            "prompts_per_step": 4,
            "group_size": 4,
            "micro_batch": 8,
            "save_every": 1,
            "max_grad_norm": 0.1,
        },
        "entropy_probe": {"every": 1, "size": 6, "second_order": True, "fresh": True},
        "control": {"name": "clip_cov"},
        "output": {"report_to": [], "log_level": "WARNING"},
    }
    return Command("train", sections)


def sft(tiny, folder):
    """Supervised steps on the demonstrations of addition."""
    sections = {
        "model": {"path": str(tiny / "base"), "lora_rank": 2, "lora_alpha": 4},
        "data": {"dataset_name": "addition"},
        "fine_tuning": {"steps": 3, "batch_size": 4, "warmup_steps": 1},
        "output": {"report_to": [], "log_level": "WARNING"},
    }
    return Command("sft", sections)


def convert(tiny, folder):
    """A checkpoint of torch.distributed.checkpoint, gathered."""
    weights = load_file(tiny / "base" / "model.safetensors")
    states = {
        name: {"step": torch.tensor(1.0), "exp_avg": x / 2, "exp_avg_sq": x * x}
        for name, x in weights.items()
    }
    optimizer = {"state": states, "param_groups": [{"lr": 1e-3, "params": [*weights]}]}
    torch.save({"model": weights, "optim": optimizer}, folder / "one.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.distributed, that it is in one process
        torch_save_to_dcp(folder / "one.pt", folder / "dcp")
    call("convert", folder / "dcp", "--model", tiny / "base", "--out", folder / "run")
    return record(folder / "run", places(tiny, folder)) | {"values": {}}  # config.json is copied


def report(tiny, folder):
    """The data behind the figures of a run on which every verb was used."""
    for verb in ("measure", "influence", "kernel", "noise", "audit"):
        sections = asked(
            tiny,
            batch_config=responses(folder),
            analysis={"overlap": "independent", "draws": 20},
            fisher_kernel={"blocks": ["UU", "EU"]},
        )
        call(verb, write(folder, sections), "--out", folder / "run")
    call("report", folder / "run")
    found = record(folder / "run", places(tiny, folder))
    kept = {name: t for name, t in found["tables"].items() if name.startswith("report/")}
    return found | {"values": {}, "tables": kept}


def demo(_, folder):
    """The demo in small, and a digest of the weights that its numbers are of."""
    short = ("--steps", 10, "--fine-tuning-steps", 200, "--evaluation-size", 32)
    call("demo", "--out", folder / "run", *short)
    found = condensed(record(folder / "run", places(folder, folder)))
    weights = (folder / "run" / "fine_tuning" / "model" / "model.safetensors").read_bytes()
    found["values"]["weights"] = {"digest": hashlib.sha256(weights).hexdigest()}
    return found


COMMANDS = {
    "measure": measure,
    "study": study,
    "influence": influence,
    "kernel": kernel,
    "noise": noise,
    "variance": variance,
    "entropies": entropies,
    "audit": audit,
    "try": trial,
    "evaluate": evaluate,
    "train": train,
    "sft": sft,
}
"""Scenes of one command that writes a run folder."""
SCENES = {name: recorded(command) for name, command in COMMANDS.items()} | {
    "check": check,
    "plan": plan,
    "convert": convert,
    "report": report,
    "demo": demo,
}
