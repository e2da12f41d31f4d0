"""Controls: what holds entropy where it is wanted, or moves it there.

A token control rewrites the weights c_ik of an update batch before the step (`base.TokenRule`); a
step control adds to the step itself (`isentropic`). Each has a file of its own. `feedback` turns
the entropy that was seen into how hard a control acts; `controls` finds them by name.
"""
