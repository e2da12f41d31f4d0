"""Write the golden files anew: python -m tests.golden.make [weights | SCENE ...]

Without a scene all are written. Do this when numbers or files are meant to change, and read the
difference before it is committed.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from isentrope.cli.console import out
from tests.golden.checkpoint import frozen_checkpoint, save_weights
from tests.golden.scenes import SCENES

FOLDER = Path(__file__).parent / "expected"
WIDTH = 80
"""Columns of the terminal."""


def file_of(name):
    return FOLDER / f"{name}.json"


def printed_file_of(name):
    return FOLDER / f"{name}.txt"


def text_of(content, depth=3):
    """JSON with a line per value, so that a difference can be read."""
    if depth == 0 or not isinstance(content, (dict, list)) or not content:
        return json.dumps(content, ensure_ascii=False, allow_nan=False)
    if isinstance(content, list):
        lines = [text_of(value, 0) for value in content]
        return "[\n" + ",\n".join(lines) + "\n]"
    lines = [f"{json.dumps(key)}: {text_of(value, depth - 1)}" for key, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def main(names):
    FOLDER.mkdir(exist_ok=True)
    out.width = WIDTH
    if names == ["weights"]:
        with tempfile.TemporaryDirectory() as folder:
            save_weights(Path(folder))
        return
    with tempfile.TemporaryDirectory() as folder:
        tiny = frozen_checkpoint(Path(folder) / "tiny")
        for name in names or SCENES:
            where = Path(folder) / name
            where.mkdir()
            start = time.process_time()
            content = SCENES[name](tiny, where)
            content.pop("screen", None)
            if printed := content.pop("printed", None):
                printed_file_of(name).write_text("\n".join(printed) + "\n", encoding="utf-8")
            file_of(name).write_text(text_of(content) + "\n", encoding="utf-8")
            print(f"{name}: {time.process_time() - start:.1f} CPU seconds", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
