"""What other trainers write and mean.

fields.py           the table of their fields: what each does to a step
harmless.py         the fields that change nothing in it
sampler_filters.py  the settings of generation that filter responses
passed.py           the fields that our own runs set, and the ranges of those that they pass through
step.py             what the fields say of a step, and where an unusual value acts
arguments.py        training_args.bin, read as data
verl_settings.py    verl's settings, read as arguments
settings.py         the settings of training's step in a checkpoint's files and its update batch
logged_texts.py     the texts that they log
unshown.py          what a result says where these do not show everything
"""
