"""Chat templates: programs that come with a tokenizer, run in a child with little time and memory.

transformers renders them in a sandbox, which bounds neither. On Linux a child process does it, one
per tokenizer; elsewhere this process does.
"""

import json
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from isentrope.system.errors import IsentropeError
from isentrope.system.reading import reason

SECONDS = 10
"""For one conversation."""
MEMORY = 2**29
"""Bytes beyond those of the process."""
LONGEST = 2**24
"""Bytes of a rendered conversation."""

Messages = Sequence[Mapping[str, Any]]


class ChatTemplateError(IsentropeError, ValueError):
    """A chat template that cannot be applied to a conversation."""


def render_chat(
    tokenizer: Any, messages: Messages, template: Mapping[str, Any] | None = None
) -> str:
    """A conversation as the text that the model reads.

    Args:
        tokenizer: With a chat template.
        messages: Role and content of every turn.
        template: Arguments of the template.

    Returns:
        The text, special tokens included, which ends where the response begins.

    Raises:
        ChatTemplateError: If the template is wrong, refuses the conversation, or takes too long or
            too much memory.
    """
    options = {**(template or {}), "add_generation_prompt": True}
    limited = _LIMITED and not multiprocessing.current_process().daemon
    try:
        request = json.dumps([list(messages), options])
    except TypeError as error:
        reply = {"refusal": reason(error)}
    else:
        reply = _child(tokenizer).ask(request) if limited else _answer(tokenizer, request)
    if "text" in reply:
        return reply["text"]
    begin = " ".join(str(messages[0].get("content", "")).split())[:40] if messages else ""
    raise ChatTemplateError(
        f"The chat template of the tokenizer cannot be applied to the conversation that begins "
        f"{begin!r}: {reply['refusal']}. Change the messages or the template, or set "
        "chat_template=false."
    )


def _answer(tokenizer: Any, request: str) -> dict[str, str]:
    messages, options = json.loads(request)
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    except Exception as error:  # whatever a program of somebody else may raise
        return {"refusal": reason(error) or type(error).__name__}
    if len(text) > LONGEST // 4:
        return {"refusal": f"it makes a text of {len(text)} characters"}
    return {"text": text}


_LIMITED = sys.platform == "linux"


class _Child:
    """A process that renders the template of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.state = _state(tokenizer)
        context: Any = multiprocessing.get_context("fork")  # the tokenizer is there at once
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(tokenizer, theirs, self._pipe), daemon=True
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads: the child starts none
            self._process.start()
        theirs.close()

    def ask(self, request: str) -> dict[str, str]:
        """What the child replies; without a reply it is ended."""
        try:
            self._pipe.send_bytes(request.encode())
            if self._pipe.poll(SECONDS):
                return json.loads(self._pipe.recv_bytes(4 * LONGEST))  # as it is escaped in JSON
            refusal = f"it takes more than {SECONDS} seconds"
        except (EOFError, OSError):
            refusal = f"it takes more than {MEMORY // 2**20} MiB of memory"
        except BaseException:
            self.end()
            raise
        self.end()
        return {"refusal": refusal}

    def end(self) -> None:
        """End the process, if it is one of this process."""
        if self.state[0] == os.getpid() and self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()
        self.state = (None,)


_children: WeakKeyDictionary[Any, _Child] = WeakKeyDictionary()


def _child(tokenizer: Any) -> _Child:
    """The process for a tokenizer, in the state that it has now."""
    child = _children.get(tokenizer)
    if child is None or child.state != _state(tokenizer):
        if child is not None:
            child.end()
        child = _children[tokenizer] = _Child(tokenizer)
    return child


def _state(tokenizer: Any) -> tuple[Any, ...]:
    special = getattr(tokenizer, "special_tokens_map", {})
    return os.getpid(), tokenizer.chat_template, dict(special)


def _serve(tokenizer: Any, pipe: Connection, other_end: Connection) -> None:
    """Render conversations until nobody asks any more."""
    import resource

    other_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process ends this one
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    while True:
        try:
            request = pipe.recv_bytes().decode()
        except (EOFError, OSError):
            return
        if most == resource.RLIM_INFINITY:  # for the case that the other process is killed
            until = int(time.process_time()) + 2 * SECONDS
            resource.setrlimit(resource.RLIMIT_CPU, (until, most))
        pipe.send_bytes(json.dumps(_answer(tokenizer, request)).encode())
