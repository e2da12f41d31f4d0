"""Run a command whose Python processes have a second device on host memory.

    python -m tests.second_device.launch COMMAND ...

The library is built from `second_device.cpp` with g++ and the headers in torch's wheel, once per
installation of torch and digest of that file, into a folder of the user's cache. It is for the
pinned version of torch, built without CUDA; anywhere else the command is skipped, which a line
says. $SECOND_DEVICES is how many are visible, one unless it is set.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "second_device.cpp"
LIBRARY = "SECOND_DEVICE"
"""The variable that names the library to the processes of the command."""


def obstacle() -> str | None:
    """Why there can be no second device here."""
    pins = (HERE.parents[1] / "constraints.txt").read_text(encoding="utf-8")
    pinned, found = re.search(r"^torch==(\S+)", pins, re.MULTILINE)[1], version("torch")
    if found.split("+")[0] != pinned:
        return f"it is written for torch {pinned}, and torch {found} is installed"
    if list(torch_folder().glob("lib/libtorch_cuda.so")):
        return "this torch is built with CUDA, whose key it would take"
    if sys.platform != "linux" or shutil.which("g++") is None:
        return "it is built by g++ on Linux"
    return None


def torch_folder() -> Path:
    return Path(find_spec("torch").submodule_search_locations[0])


def library() -> Path:
    """The library, built if it is not in the cache."""
    torch = torch_folder()  # the library finds its torch at this path, and nowhere else
    key = f"{version('torch')}-{platform.machine()}-{torch}".encode() + SOURCE.read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isentrope"
    built = cache / f"second_device_{hashlib.sha256(key).hexdigest()[:16]}.so"
    if not built.exists():
        cache.mkdir(parents=True, exist_ok=True)
        partial = built.with_suffix(f".{os.getpid()}")
        include = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include"]
        link = [f"-L{torch}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch}/lib"]
        flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-w"]
        subprocess.run(["g++", *flags, *include, str(SOURCE), "-o", partial, *link], check=True)
        partial.replace(built)
    return built


def environment() -> dict[str, str]:
    """This process's, with what gives its children the second device."""
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(HERE / "site"), *([before] if before else [])])
    return os.environ | {LIBRARY: str(library()), "PYTHONPATH": path}


if __name__ == "__main__":
    if reason := obstacle():
        print(f"SKIPPED, no second device: {reason}.\n  {' '.join(sys.argv[1:])}", flush=True)
        sys.exit(0)
    os.execvpe(sys.argv[1], sys.argv[1:], environment())
