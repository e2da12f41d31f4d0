"""Chat templates: programs that come with a tokenizer, run in a child with little time and memory.

transformers renders them in a sandbox, which bounds neither. On Linux a child process does it, one
for all conversations that are encoded together; elsewhere this process does.
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

from isentrope.system.errors import IsentropeError
from isentrope.system.reading import reason

SECONDS = 10
"""For one conversation."""
MEMORY = 2**29
"""Bytes beyond those of the process."""
LARGEST_RENDERING = 2**24
"""Bytes of a rendered conversation."""

Conversation = tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]
"""Messages, and arguments of the template."""


class ChatTemplateError(IsentropeError, ValueError):
    """A chat template that cannot be applied to a conversation."""


def render_chats(tokenizer: Any, conversations: Sequence[Conversation]) -> list[str]:
    """Conversations as the texts that the model reads.

    Args:
        tokenizer: With a chat template.
        conversations: Role and content of every turn, and arguments of the template.

    Returns:
        The texts, special tokens included, which end where the response begins.

    Raises:
        ChatTemplateError: If the template is wrong, refuses a conversation, or takes too long or
            too much memory.
    """
    if sys.platform == "linux" and not multiprocessing.current_process().daemon:
        replies = _in_child(tokenizer, conversations)
    else:
        replies = [_answer(tokenizer, conversation) for conversation in conversations]
    for (messages, _), reply in zip(conversations, replies, strict=False):
        if "refusal" in reply:
            first = messages[0].get("content", "") if messages else ""
            begin = " ".join(str(first).split())[:40]
            raise ChatTemplateError(
                "The chat template of the tokenizer cannot be applied to the conversation that "
                f"begins {begin!r}: {reply['refusal']}. Change the messages or the template, or "
                "set chat_template=false."
            )
    return [reply["text"] for reply in replies]


def _answer(tokenizer: Any, conversation: Conversation) -> dict[str, str]:
    messages, template = conversation
    options = {**template, "tokenize": False, "add_generation_prompt": True}
    try:
        plain = json.loads(json.dumps([list(messages), options]))  # of plain values alone
        text = tokenizer.apply_chat_template(plain[0], **plain[1])
        text.encode()  # refuses half of a surrogate pair, which no tokenizer takes
    except Exception as error:  # whatever a program of somebody else may raise
        return {"refusal": reason(error) or type(error).__name__}
    if len(text) > LARGEST_RENDERING // 4:
        return {"refusal": f"it makes a text of {len(text)} characters"}
    return {"text": text}


def _in_child(tokenizer: Any, conversations: Sequence[Conversation]) -> list[dict[str, str]]:
    """What a process of its own replies, up to the first refusal."""
    context: Any = multiprocessing.get_context("fork")  # the tokenizer is there at once
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=_serve, args=(tokenizer, conversations, theirs, ours), daemon=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads: the child starts none
        process.start()
    theirs.close()
    replies: list[dict[str, str]] = []
    try:
        for _ in conversations:
            if not ours.poll(SECONDS):
                return [*replies, {"refusal": f"it takes more than {SECONDS} seconds"}]
            replies.append(
                json.loads(ours.recv_bytes(4 * LARGEST_RENDERING))
            )  # as it is escaped in JSON
            if "refusal" in replies[-1]:
                break
    except (EOFError, OSError):
        replies.append({"refusal": f"it takes more than {MEMORY // 2**20} MiB of memory"})
    finally:
        process.kill()
        process.join()
        ours.close()
    return replies


def _serve(
    tokenizer: Any, conversations: Sequence[Conversation], pipe: Connection, other_end: Connection
) -> None:
    """Render conversations."""
    import resource

    other_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process ends this one
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    _, hard_limit = resource.getrlimit(resource.RLIMIT_CPU)
    for conversation in conversations:
        if hard_limit == resource.RLIM_INFINITY:  # for the case that the other process is killed
            until = int(time.process_time()) + 2 * SECONDS
            resource.setrlimit(resource.RLIMIT_CPU, (until, hard_limit))
        pipe.send_bytes(json.dumps(_answer(tokenizer, conversation)).encode())
