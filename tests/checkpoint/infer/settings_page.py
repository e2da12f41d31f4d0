"""docs/trl_settings.md from the code: `python -m tests.checkpoint.infer.settings_page`."""

from pathlib import Path

from isentrope.checkpoint.infer.fields import FIELDS, REFUSALS
from isentrope.checkpoint.infer.passed import managed_fields

PAGE = Path(__file__).parents[3] / "docs" / "trl_settings.md"

INTRODUCTION = """# What is read from a trainer's arguments

TRL and transformers write `training_args.bin` into every checkpoint. It is a pickle, and is read
without running anything that is in it: a file that asks for a call is refused. This page lists
every field of TRL's `GRPOConfig`, `RLOOConfig` and `SFTConfig` and of transformers'
`TrainingArguments`. It is made from the code (`isentrope.checkpoint.infer.fields`), and a test
holds that list against the TRL that is installed. [The settings of verl](from_verl.md) are
read by these names too; what TRL does not have is the field `verl`.

- **read**: the key of the configuration that takes the value where it is not set. A key that is
  set to something else is refused.
- **refused**: such a value puts something into training's step that is not computed here. The verb
  stops and names the field. With `estimator.ignore_training_settings: [field]` it goes on, and the
  result starts with a warning. `objective: recorded` holds most of it, and is then let through.
- **noted**: a warning in the result.
- **harmless**: the step stays the same.

On-policy every importance ratio is 1, so clips, caps and gates do not act. That is why `epsilon`,
`delta` ≥ 1, `importance_sampling_level` and the parameters of SAPO and VESPO change nothing there.

| | fields | meaning |
|---|---|---|"""

OURS = """
## What `isentrope train` and `isentrope sft` set

Their section `trainer` passes every other field to TRL's `GRPOConfig` and `SFTConfig`.

| fields | set by, or why they cannot be given |
|---|---|"""


def meaning(name, field):
    """What becomes of a field, in words."""
    refusals = (refused(refusal) for refusal in REFUSALS if refusal.field == name)
    return "; ".join(filter(None, (field.words, *refusals)))


def refused(refusal):
    """What an unusual value does, where, and the values that do not."""
    usual = [f"`{value}`" for value in refusal.usual if value != ""]
    unless = f"unless {', '.join(usual)}" if usual else ""
    conditions = ", ".join(filter(None, (refusal.where.words, unless)))
    return f"{refusal.words} ({conditions})" if conditions else refusal.words


def settings_page():
    """Every field of the four configurations and what becomes of it, as Markdown."""
    groups = {}
    for name, field in FIELDS.items():
        groups.setdefault((field.treatment, meaning(name, field)), []).append(f"`{name}`")
    order = ("read", "refused", "noted", "harmless")
    rows = [
        f"| {what} | {', '.join(names)} | {words} |"
        for (what, words), names in sorted(groups.items(), key=lambda row: order.index(row[0][0]))
    ]
    ours = [
        f"| {', '.join(f'`{name}`' for name in names)} | {key.removeprefix('nothing: ')} |"
        for key, names in managed().items()
    ]
    return "\n".join([INTRODUCTION, *rows, OURS, *ours, ""])


def managed():
    """Fields that our own runs set, by what sets them."""
    groups = {}
    for verb in ("train", "sft"):
        for name, key in managed_fields(verb).items():
            names = groups.setdefault(key, [])
            names += [] if name in names else [name]
    return groups


if __name__ == "__main__":
    PAGE.write_text(settings_page(), encoding="utf-8")
