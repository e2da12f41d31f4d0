"""Every measuring verb once, by however many processes run this.

python -m tests.verbs.sharing CHECKPOINT OUT [VERB ...]
torchrun --nproc_per_node 2 -m tests.verbs.sharing CHECKPOINT OUT
"""

import json
import sys
from pathlib import Path

from isentrope.cli.commands import MEASURING
from isentrope.config.io import load_config
from isentrope.system.processes import leave, rank
from isentrope.verbs.check import check
from isentrope.verbs.loop import run_verb
from tests.tiny_checkpoint import settings

BATCHES = {"B_E": 14, "B_U": 5, "G": 3, "save_batches": True}
MORE = {
    "measure": {"estimator": {"eta_list": [1e-4, 1e-3], "resample_collapsed": True, "order": 2}},
    "stages": {"precision": {"sampler_dtype": "float32"}},
    "influence": {"analysis": {"share_responses": 2}},
    "kernel": {"fisher_kernel": {"blocks": ["UU", "EU", "EE"], "second_order": True}},
    "noise": {},
    "variance": {},
    "audit": {},
    "resampled": {"estimator": {"method": "resampled", "eta_list": [1e-3]}},
    "one_batch": {"analysis": {"overlap": "u_statistic", "tokens": False, "groups": 2}},
    "loop": {"analysis": {"gradient_backend": "loop", "tokens": False, "reward": False}},
    "quantised": {"fisher_kernel": {"storage": "int8", "blocks": ["UU"]}},
}
"""What is run; names that are no verbs are settings of one."""
OF = {
    "resampled": "measure",
    "stages": "measure",
    "one_batch": "influence",
    "loop": "influence",
    "quantised": "kernel",
}


def main(checkpoint, out, sharded=False):
    """Run them in turn."""
    for name, more in MORE.items():
        asked = settings(checkpoint, batch_config=BATCHES, **more)
        if sharded:
            asked["checkpoint"]["shard_base"] = True
            asked.get("fisher_kernel", {}).pop("second_order", None)  # is refused
        asked["output"] = {"directory": str(out / name), "log_level": "WARNING"}
        verb = OF.get(name, name)
        run_verb(MEASURING[verb], load_config(asked))
    asked = settings(checkpoint, batch_config=BATCHES, checkpoint={"shard_base": sharded})
    found = check(load_config(asked))
    if rank() == 0:
        said = {k: [[f.name, f.passed] for f in of] for k, of in found.items()}
        (out / "check.json").write_text(json.dumps(said))
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), "sharded" in sys.argv)
