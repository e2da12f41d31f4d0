"""What full fine-tuning adds to the verbs, once, by however many processes run this.

python -m tests.verbs.sharing_full FOLDER OUT
torchrun --nproc_per_node 2 -m tests.verbs.sharing_full FOLDER OUT sharded
"""

import sys
from pathlib import Path

from isentrope.cli.commands import MEASURING
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig
from isentrope.system.processes import leave
from isentrope.verbs.evaluate import evaluate_checkpoints
from isentrope.verbs.loop import run_verb
from isentrope.verbs.train import train
from tests.tiny_checkpoint import make_full_checkpoint, settings
from tests.training import runs
from tests.verbs import evaluating, sharing

TRAINED = ("*layers.1*", "*embed_tokens*")
"""Of the checkpoint that is trained in part."""


def make(folder):
    """A run under a control, one in bfloat16, and a checkpoint that was trained in part."""
    short = {"training": {"steps": 3, "save_every": 1}, "entropy_probe": {"every": 9}}
    for name, dtype, control in (("run", "float32", "clip_cov"), ("short", "bfloat16", "none")):
        content = runs.settings(folder / name, **short, control={"name": control})
        content["model"] |= {"lora_rank": 0, "dtype": dtype}
        train(load_config(content, (), TrainConfig))
    (folder / "part").mkdir()
    make_full_checkpoint(folder / "part", TRAINED)


def asked(folder):
    """Verb and configuration by name."""
    last, short = (folder / name / "run" / "training_state" / "step_3" for name in ("run", "short"))
    before = folder / "run" / "run" / "training_state" / "step_2"
    prompts = str(folder / "run" / "prompts.jsonl")
    sizes = {"B_E": 12, "B_U": 2, "G": 8, "allow_overlap": True, "dataset_path": prompts}
    of_run = {"batch_config": sizes, "sampling": {"max_new_tokens": 1}}
    sequences = {"analysis": {"overlap": "independent", "tokens": False}}
    recorded = sizes | {"U_file": str(before / "next_update" / "rollouts.parquet")}
    rounded = {"estimator": {"rounded_step": True, "eta_list": [1e-2], "order": 1}}
    part = settings(folder / "part", batch_config=sharing.BATCHES)
    part["checkpoint"]["trainable"] = list(TRAINED)
    return {
        "sequences": ("influence", at(last, of_run | sequences)),
        "recorded": ("measure", at(before, of_run | {"batch_config": recorded})),
        "rounded": ("measure", at(short, of_run | rounded)),
        "part": ("measure", part),
        "part_influence": ("influence", part),
    }


def at(checkpoint, sections):
    content = settings(checkpoint.parent, **sections)
    content["checkpoint"] = {"checkpoint_path": str(checkpoint)}
    return content


def main(folder, out, sharded=False):
    """Run them in turn, and evaluate."""
    for name, (verb, content) in asked(folder).items():
        content["checkpoint"]["shard_base"] = sharded
        content["output"] = {"directory": str(out / name), "log_level": "WARNING"}
        run_verb(MEASURING[verb], load_config(content))
    content = evaluating.settings(folder / "part")
    content["checkpoint"]["shard_base"] = sharded
    content["output"] = {"directory": str(out / "evaluated"), "log_level": "WARNING"}
    evaluate_checkpoints(load_config(content, (), EvaluateConfig))
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), "sharded" in sys.argv)
