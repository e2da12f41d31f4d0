"""Names of a user's own file, looked up without running it."""

import pytest

from isentrope.system.python_file import require_defined


@pytest.mark.parametrize(
    "source",
    [
        "def reward(): ...".encode("utf-8-sig"),
        "# -*- coding: latin-1 -*-\nreward = 'ü'".encode("latin-1"),
        b"from elsewhere import *",
        b"globals()['re' + 'ward'] = len",
        b"if True:\n    from math import sqrt as reward",
    ],
)
def test_a_name_is_not_refused_where_running_the_file_may_bind_it(tmp_path, source):
    file = tmp_path / "rewards.py"
    file.write_bytes(source)
    require_defined(f"{file}:reward", "reward")
