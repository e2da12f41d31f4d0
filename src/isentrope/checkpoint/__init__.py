"""A checkpoint: its files, what its numbers are made from, and the policy in it.

checkpoint.py  a checkpoint of a configuration, found on disk, and its policy
files.py       what a folder holds, each file opened once
digests.py     digests of its files by part
record/        what training writes beside it, from which its step can be replayed
infer/         what other trainers write and mean
convert/       checkpoints of other trainers, gathered into one that every verb reads
"""
