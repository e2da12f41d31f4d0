"""Controls: rules that hold entropy at a target, or move it there.

A token control rewrites the weights c_ik of an update batch before the step (`base.TokenRule`); a
step control adds a correction to the step itself (`budget`). Each has a file of its own.
`feedback` computes the strength of a control from the measured entropy; `controls` looks controls
up by name.
"""
