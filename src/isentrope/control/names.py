"""Names of controls, and what is refused of one before any control is imported."""

from difflib import get_close_matches

from isentrope.system.python_file import FILE_NAME, is_plain, require_defined

TOKEN_NAMES = ("clip_cov", "repo_r", "bonus")
"""Controls that rewrite the weights of an update batch."""
FIELD_NAMES = ("kl_cov", "clip_higher", "cispo", "gspo", "adaptive")
"""Controls that set fields of TRL's configuration."""
STEP_NAMES = ("budget",)
"""Controls that add to the optimizer's step itself."""
CONTROL_NAMES = (*TOKEN_NAMES, *FIELD_NAMES, *STEP_NAMES)
"""All that have a name of their own."""

EXAMPLES = {
    "clip_b": "clip_b.py:ClipB",
    "stare": "stare.py:Stare",
    "steer": "steer.py:Steer",
    "entropic": "entropic.py:EntroPIC",
    "w_reinforce": "w_reinforce.py:WReinforce",
    "entrocraft": "entrocraft.py:Entrocraft",
    "pass_at_k": "pass_at_k.py:PassAtK",
    "qae": "qae.py:QuantileAdvantage",
    "entropy_mask": "masks.py:EntropyMask",
    "random_mask": "masks.py:RandomMask",
    "negative_scale": "masks.py:NegativeScale",
    "lp_reg": "lp_reg.py:LpReg",
    "influence": "influence.py:InfluenceClip",
}
"""Names of examples, most from earlier versions, and where in examples/controls they are."""


def require_control(name: str) -> None:
    """Refuse a name of no control, as far as names and sources tell.

    Args:
        name: One of `CONTROL_NAMES`, or FILE.py:NAME.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the name is unknown, or the file does not define it.
    """
    if name in CONTROL_NAMES:
        return
    if name in EXAMPLES:
        raise ValueError(
            f"The control {name!r} is an example: name it "
            f"examples/controls/{EXAMPLES[name]}, a file of the repository."
        )
    if not FILE_NAME.fullmatch(name):
        nearest = get_close_matches(str(name).lower(), CONTROL_NAMES, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"Unknown control {name!r}: the nearest is {nearest!r}; choose one of none, "
            f"{', '.join(CONTROL_NAMES)}, or FILE.py:NAME."
        )
    require_defined(name, "control")
    if is_plain(name, "control"):
        raise ValueError(not_a_control(name))


def not_a_control(name: str) -> str:
    """The refusal of an object that is no control.

    Args:
        name: FILE.py:NAME.

    Returns:
        A sentence.
    """
    return (
        f"{name} is not a token control: write a subclass of isentrope.control.base.TokenRule "
        "under the decorator `options`, as examples/controls do."
    )


def require_tried(name: str) -> None:
    """Refuse a name of no control, or of one that acts only over the steps of a run.

    Args:
        name: One of `CONTROL_NAMES`, or FILE.py:NAME.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If no control of that name can be tried.
    """
    require_control(name)
    if name in FIELD_NAMES:
        raise ValueError(
            f"The control {name!r} cannot be tried in one step on a new batch: it acts through "
            "ratios other than 1, or its coefficient changes with the steps of a run."
        )
