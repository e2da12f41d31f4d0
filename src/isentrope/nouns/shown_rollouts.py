"""How rollouts look: one line at the prompt of Python, and the first responses in a notebook."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from isentrope.nouns.rollout_columns import TYPES
from isentrope.system.html_table import html_table
from isentrope.system.one_line import LONGEST_TEXT, one_line, plural

RESPONSES_SHOWN = 8
_LONGEST_CELL = 3 * LONGEST_TEXT


class ShownRollouts:
    """The part of `Rollouts` that says what they are."""

    prompt_index: Tensor
    response_ids: list[Tensor]
    prompt_keys: list[str] | None
    response_texts: list[str] | None
    rewards: Tensor | None
    advantages: Tensor | None
    n_prompts: Any
    token_counts: Any

    def _size(self) -> str:
        """Responses, prompts and tokens in words."""
        responses = plural(len(self.response_ids), "response")
        tokens = plural(int(self.token_counts.sum()), "token")
        return f"{responses} to {plural(self.n_prompts, 'prompt')}, {tokens}"

    def __repr__(self) -> str:
        columns = [name for name in [*TYPES][3:] if getattr(self, name) is not None]
        return one_line(self, self._size(), *([", ".join(columns)] if columns else []))

    def _repr_html_(self) -> str:
        """The first responses with what is known of each, for a notebook; texts are escaped."""
        columns: dict[str, Sequence[object]] = {
            "response": range(len(self.response_ids)),
            "prompt": self.prompt_index.tolist(),
            "key": self.prompt_keys or (),
            "tokens": self.token_counts.tolist(),
            "reward": [] if self.rewards is None else self.rewards.tolist(),
            "advantage": [] if self.advantages is None else self.advantages.tolist(),
            "text": self.response_texts or (),
        }
        names = [name for name, column in columns.items() if len(column)]
        rows = [
            [cell_text(columns[name][i]) for name in names]
            for i in range(min(RESPONSES_SHOWN, len(self.response_ids)))
        ]
        more = len(self.response_ids) - len(rows)
        note = f"{plural(more, 'more response')} not shown." if more else ""
        return html_table([f"{self._size()}."], names, rows, note)


def cell_text(value: object) -> str:
    """A number in few digits, and the beginning of a text with its control characters escaped."""
    if isinstance(value, float):
        return f"{value:.3g}"
    text = repr(value)[1:-1] if isinstance(value, str) else str(value)
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}…"
