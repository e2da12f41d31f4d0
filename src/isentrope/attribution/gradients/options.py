"""How the gradients of sequences are computed and held, in one object for every attribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from isentrope.attribution.gradients.storage_plan import Storage

GradientBackend = Literal["hooks", "loop"]


@dataclass(frozen=True)
class GradientOptions:
    """How the gradients of sequences are computed and held.

    Attributes:
        backend: "hooks": one backward pass per micro-batch; "loop": one per sequence, which is
            exact for every kind of layer and slower.
        storage: How the gradients of the smaller side may be held; without limit by default.
    """

    backend: GradientBackend = "hooks"
    storage: Storage = Storage()
