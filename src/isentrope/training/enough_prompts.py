"""Whether a training set has the prompts of a step, and tells them apart by their keys."""

from collections.abc import Sequence


def require_keys(keys: Sequence[str]) -> None:
    """Refuse prompts of one key.

    Args:
        keys: Of the training set.

    Raises:
        ValueError: Naming a key that two prompts have.
    """
    if len(set(keys)) < len(keys):
        before = set[str]()
        duplicate = next(key for key in keys if key in before or before.add(key))
        raise ValueError(
            f"Two training prompts have the key {duplicate!r}: keys must differ. Omit one of them, "
            "or give each a 'key' of its own."
        )


def require_step(needed: int, size: int, drawn: int = 0) -> None:
    """Refuse a step of more prompts than there are.

    Args:
        needed: Prompts that the step still needs.
        size: Prompts of the training set.
        drawn: Those that the step has drawn before.

    Raises:
        ValueError: In a sentence.
    """
    if needed + drawn > size:
        addition = f", {drawn} of them drawn in this step" if drawn else ""
        raise ValueError(
            f"A step needs {needed} prompts and the training set has {size}{addition}: use more "
            "prompts, a smaller training.prompts_per_step, or a lower training.redraw_limit."
        )
