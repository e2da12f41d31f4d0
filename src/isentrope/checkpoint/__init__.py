"""A checkpoint: its files, the settings of its training, the policy in it, and the step from it.

checkpoint.py      the checkpoint, whole
facts.py           what its files say, each read once
settle.py          the settings of one measurement: its own, or else training's
in_force.py        where each came from, what differs, and what may
step.py            the step that training would take on an update batch
limits.py          what makes the computed step another than training's
overrides.py       settings of one step, given in Python
optimizer_step.py  the same step by `ise.optimizer_step`
folder_settings.py the settings of a folder that no configuration names
find.py            the checkpoints that a configuration means
digests.py         digests of its files by part
files.py           what a folder holds, each file opened once
record/            what training writes beside it, from which its step can be replayed
infer/             what other trainers write and mean
convert/           checkpoints of other trainers, gathered into one that every verb reads
"""
