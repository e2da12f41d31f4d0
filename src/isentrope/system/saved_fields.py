"""Objects that are saved with a checkpoint by some of their fields, and resume from there."""

import copy
from collections.abc import Mapping
from typing import Any


class SavedFields:
    """A base class of what has a state.

    Attributes:
        SAVED: Names of the saved fields; the key of `_x` is x. A field that has a state itself is
            saved by it.
    """

    SAVED: tuple[str, ...] = ()

    def state_dict(self) -> dict[str, Any]:
        """The saved fields, as plain JSON."""
        fields = {name.removeprefix("_"): getattr(self, name) for name in self.SAVED}
        return {
            key: value.state_dict() if isinstance(value, SavedFields) else copy.deepcopy(value)
            for key, value in fields.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state.

        Args:
            state: What `state_dict` returned.

        Raises:
            ValueError: If a field has a value of another type.
        """
        for name in self.SAVED:
            key = name.removeprefix("_")
            value = getattr(self, name)
            if isinstance(value, SavedFields):
                value.load_state_dict(state[key])
            elif value is None or isinstance(state[key], type(value)):
                setattr(self, name, state[key])
            else:
                raise ValueError(f"{key} is {state[key]!r}")
