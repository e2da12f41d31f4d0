"""Make what the verbs take of a verl run: the batch of a step, and a file of settings.

    isentrope convert global_step_20/actor --out converted/step_20
    python docs/from_verl.py converted/step_20 21.jsonl .hydra/config.yaml prompts.jsonl OUT
    isentrope measure OUT/measure.yaml

21.jsonl is verl's dump of the step after the checkpoint (`trainer.rollout_data_dir`), the
settings are those that hydra wrote for the run, and prompts.jsonl has the data set's prompts, one
per line: {"messages": [{"role": "user", "content": "..."}], "reference": "..."}.
"""

import json
import sys
from pathlib import Path

import torch
import yaml

import isentrope as ise
from isentrope.sampling.prompts import as_prompts

ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
LOSSES = {
    "token-mean": "dapo",
    "seq-mean-token-mean": "grpo",
    "seq-mean-token-sum": "rloo",
    "seq-mean-token-sum-norm": "dr_grpo",
}
"""Objective by `loss_agg_mode`, as verl 0.9 divides: by tokens and responses of the whole step."""
NEEDED = {
    ACTOR + "loss_agg_mode": tuple(LOSSES),
    ACTOR + "policy_loss.loss_mode": ("vanilla",),
    ACTOR + "entropy_coeff": (0, None),
    ACTOR + "use_kl_loss": (False, None),
    ACTOR + "ppo_epochs": (1, None),
    ROLLOUT + "top_k": (-1, 0, None),
    ROLLOUT + "top_p": (1, None),
    ROLLOUT + "multi_turn.enable": (False, None),
    "algorithm.adv_estimator": ("grpo",),
    "algorithm.use_kl_in_reward": (False, None),
    "algorithm.rollout_correction.rollout_is": (None,),
    "algorithm.rollout_correction.rollout_rs": (None,),
    "trainer.use_legacy_worker_impl": ("disable", None),  # verl before 0.9 divides by passes
}
"""Settings, and the values with which the step is one that isentrope computes."""
EPSILON = 1e-6
"""Added to a group's standard deviation, as verl does."""


def setting(content, place):
    """The value at a dotted place; None where there is none."""
    for key in place.split("."):
        content = content.get(key) if isinstance(content, dict) else None
    if isinstance(content, str) and "${" in content:
        raise ValueError(f"{place} is {content}: write its value into the file.")
    return content


def training_of(path):
    """What verl's settings say of the step, as sections of a configuration.

    Raises:
        ValueError: Naming every setting whose value puts something else into the step.
    """
    content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    found = {place: setting(content, place) for place in NEEDED}
    wrong = [f"{place}={x}" for place, x in found.items() if x not in NEEDED[place]]
    mini, whole = (
        setting(content, x) for x in (ACTOR + "ppo_mini_batch_size", "data.train_batch_size")
    )
    if mini != whole:
        wrong.append(f"{ACTOR}ppo_mini_batch_size={mini}, and a dump holds {whole} prompts")
    objective = LOSSES.get(found[ACTOR + "loss_agg_mode"])
    constant = setting(content, ACTOR + "loss_scale_factor")
    if objective == "dr_grpo" and constant is None:
        wrong.append(f"{ACTOR}loss_scale_factor=None, so L is not known")
    if wrong:
        raise ValueError(f"{path}: this step is not computed by isentrope: {'; '.join(wrong)}.")
    length = {"max_response_length": constant} if objective == "dr_grpo" else {}
    clip = setting(content, ACTOR + "clip_ratio")
    bounds = [setting(content, f"{ACTOR}clip_ratio_{end}") for end in ("low", "high")]
    return {
        "sampling": {
            "temperature": setting(content, ROLLOUT + "temperature"),
            "max_new_tokens": setting(content, "data.max_response_length"),
        },
        "estimator": {
            "objective": objective,
            "max_grad_norm": setting(content, ACTOR + "grad_clip"),
            "clip": [clip if bound is None else bound for bound in bounds],
            **length,
        },
    }, setting(content, "algorithm.norm_adv_by_std_in_grpo") is not False


def batch_of(policy, path, prompts, max_new_tokens, normalised):
    """The responses of a dump, by prompt, with rewards and verl's advantages.

    verl writes texts without special tokens: a prompt is found in the data set by its text, and a
    response is encoded again.
    """

    def text(ids):
        return policy.tokenizer.decode(ids, skip_special_tokens=True)

    known = {text(prompt.token_ids): prompt for prompt in as_prompts(policy, prompts)}
    lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    groups = {}
    for number, line in enumerate(lines, 1):
        if missing := {"input", "output", "score", "step"} - line.keys():
            raise ValueError(f"{path}, line {number} has no {min(missing)!r}.")
        if line["step"] != lines[0]["step"]:
            raise ValueError(f"{path}, line {number} is of another step than the first.")
        if line["input"] not in known:
            raise ValueError(
                f"{path}, line {number}: no prompt of the data set has its input's text."
            )
        ids = list(policy.tokenizer(line["output"], add_special_tokens=False)["input_ids"])
        if text(ids) != line["output"]:
            raise ValueError(
                f"{path}, line {number}: its output encoded and decoded is another text."
            )
        ended = [] if len(ids) >= max_new_tokens else [policy.eos_token_id]
        groups.setdefault(line["input"], []).append((ids[:max_new_tokens] + ended, line["score"]))
    U = ise.Rollouts(
        prompt_ids=[torch.tensor(known[name].token_ids) for name in groups],
        response_ids=[torch.tensor(ids) for group in groups.values() for ids, _ in group],
        prompt_index=[k for k, group in enumerate(groups.values()) for _ in group],
        rewards=[float(score) for group in groups.values() for _, score in group],
        max_new_tokens=max_new_tokens,
    )
    advantages = []
    for group in groups.values():
        scores = torch.tensor([float(score) for _, score in group], dtype=torch.float64)
        centred = scores - scores.mean()
        advantages.append(centred / (scores.std() + EPSILON) if normalised else centred)
    return U.with_columns(advantages=torch.cat(advantages))


def main(checkpoint, dump, settings, prompts, out):
    """Write OUT/U.parquet and OUT/measure.yaml."""
    sections, normalised = training_of(settings)
    policy = ise.Policy.from_checkpoint(checkpoint, temperature=sections["sampling"]["temperature"])
    task, longest = ise.load_task("prompts", path=prompts), sections["sampling"]["max_new_tokens"]
    Path(out).mkdir(parents=True, exist_ok=True)
    U = batch_of(policy, dump, task.prompts, longest, normalised)
    U.save(Path(out) / "U.parquet")
    sections["checkpoint"] = {"checkpoint_path": str(checkpoint)}
    sections["batch_config"] = {
        "dataset_name": "prompts",
        "dataset_path": str(prompts),
        "U_file": str(Path(out) / "U.parquet"),
        "B_E": 256,
    }
    sections["analysis"] = {"reward": False}  # the reward of this training is in U alone
    (Path(out) / "measure.yaml").write_text(yaml.safe_dump(sections, sort_keys=False))
    print(f"{len(U)} responses to {U.n_prompts} prompts; now: isentrope measure {out}/measure.yaml")


if __name__ == "__main__":
    main(*sys.argv[1:6])
