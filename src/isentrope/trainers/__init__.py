"""What other trainers write and mean.

fields.py      the table of their fields: what becomes of each
arguments.py   training_args.bin, read as data
settings.py    the settings of training's step in a checkpoint's files
convert/       their checkpoints, gathered into one that every verb reads
"""
