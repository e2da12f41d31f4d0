"""Whatever is wrong with a file is one sentence that names it, and no other module parses files."""

import ast
import pickle

import pytest
import torch

from isentrope.system import files, reading
from isentrope.system.errors import FileError, IsentropeError
from isentrope.training.run_files import read_log
from tests.sources import trees


class Raised(Exception):
    """An error of a library that derives from nothing else."""


ERRORS = [
    *(ValueError("x"), TypeError("x"), KeyError("x"), AttributeError("x"), IndexError("x")),
    *(RecursionError(), MemoryError(), OSError(5, "Input/output error"), RuntimeError("x")),
    *(pickle.UnpicklingError("set weights_only=False"), Raised("x"), ZeroDivisionError("x")),
    *(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), OverflowError(), StopIteration()),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_any_failure_is_a_sentence_on_the_file(error, tmp_path):
    with (
        pytest.raises(FileError, match=r"f cannot be read: .+\. Make it again\.$") as caught,
        reading.reading(tmp_path / "f", "Make it again."),
    ):
        raise error
    assert isinstance(caught.value, (IsentropeError, ValueError))
    assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        FileError("A sentence."),
        ImportError("x"),
        torch.OutOfMemoryError(),
        KeyboardInterrupt(),
    ],
)
def test_what_is_not_the_files_fault_is_left_as_it_is(error):
    with pytest.raises(type(error)) as caught, reading.reading("f"):
        raise error
    assert caught.value is error


def test_a_missing_file_is_named_once():
    with pytest.raises(FileNotFoundError, match=r"^There is no file a/b\. Restore"):
        reading.read_text("a/b")
    with pytest.raises(FileNotFoundError, match=r"^Mine\.$"), reading.reading("f"):
        raise FileNotFoundError("Mine.")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is not JSON"),
        (b"{", "it is not JSON"),
        (b"\xff", "it is not UTF-8 text"),
        (b"[]", "it should hold an object, and holds"),
        (b"3", "it should hold an object, and holds 3"),
        (b'{"a": NaN}', "NaN is not a finite number"),
        (b'{"a": -Infinity}', "-Infinity is not a finite number"),
        (b'{"a": 1e999}', "1e999 is not a finite number"),
        (b'{"a": 1, "a": 2}', "the key 'a' is given twice"),
        (b'{"a": "\\ud800"}', "surrogates not allowed|not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
    ],
)
def test_json_is_strict(content, words, tmp_path):
    (tmp_path / "f.json").write_bytes(content)
    with pytest.raises(FileError, match=rf"f\.json cannot be read: .*({words})"):
        reading.read_json(tmp_path / "f.json")


def test_json_of_other_programs_may_hold_nan(tmp_path):
    (tmp_path / "f.json").write_text('{"a": NaN, "b": 1.5}')
    assert reading.read_json(tmp_path / "f.json", finite=False)["b"] == 1.5


def test_a_bad_line_is_named_by_its_number(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_text('{"a": "x\u2028y"}\n\n{"a": 2}\n')
    assert reading.read_json_lines(path) == [(1, {"a": "x\u2028y"}), (3, {"a": 2})]
    path.write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(FileError, match=r"f\.jsonl, line 2 cannot be read: it is not JSON"):
        reading.read_json_lines(path)


def test_a_log_is_read_as_far_as_it_can_be(tmp_path):
    path = tmp_path / "m.jsonl"
    lines = ['{"step": 1, "x": 0.5}', "5", "[]", '{"x": 1}', '{"step": "2"}', '{"step": true}']
    path.write_text("\n".join([*lines, '{"step": 2, "x": []}', '{"step": 3, "x": null}', '{"st']))
    rows, lost = read_log(path)
    assert rows == [{"step": 1, "x": 0.5}, {"step": 3, "x": None}]
    assert lost == 7


def test_every_reader_verifies_a_file_of_a_whole_folder(tmp_path):
    with files.whole_folder(tmp_path / "m") as folder:
        (folder / "a.json").write_text('{"a": 1}')
    (tmp_path / "m" / "a.json").write_text('{"a": 2}')
    with pytest.raises(FileError, match=r"a\.json was changed after it was written"):
        reading.read_json(tmp_path / "m" / "a.json")


# ------------------------------------------------------------------ nobody else parses files

PARSERS = {
    *("loads", "load_file", "safe_open", "read_text", "read_bytes", "from_pretrained"),
    "from_config",
    *("read_parquet", "safe_load"),
}
OF = {
    "torch": {"load"},
    "json": {"load"},
    "pq": {"read_table", "read_schema", "ParquetFile"},
    "pd": {"read_csv"},
}
EXCEPTIONS = {
    ("__init__.py", ""): "the stub of the package itself",
    ("system/reading.py", "parse_json"): "text, not files",
    ("system/manifest.py", "*"): "below `reading`, which uses it",
    ("sampling/chat_template.py", "*"): "messages between processes",
    ("system/file_contents.py", "sort_metadata"): "below `reading`; part of writing a file",
    ("config/trl_fields.py", "_tree_of"): "the sources of an installed library",
    ("run/lock.py", "_holder"): "the note of a lock, read for a message alone",
}


def parsers(tree):
    """(function, line) of every call that parses a file outside a `with reading(...)` block."""

    def visit(node, function, inside):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.name
        if isinstance(node, ast.With):
            opened = [ast.unparse(item.context_expr) for item in node.items]
            inside = inside or any(o.startswith(("reading(", "loading(")) for o in opened)
        if isinstance(node, ast.Call) and not inside:
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            owner = ast.unparse(called.value) if isinstance(called, ast.Attribute) else ""
            own = name in ("read_text", "read_bytes") and not owner  # those of `reading`
            if (name in PARSERS and not own) or name in OF.get(owner, ()):
                yield function, node.lineno
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function, inside)

    return list(visit(tree, "", False))


@pytest.mark.parametrize(
    "line",
    [
        "json.loads(x)",
        "path.read_text()",
        "pd.read_parquet(p)",
        "pq.read_table(p)",
        "load_file(p)",
        "torch.load(p)",
        "safe_open(p)",
        "AutoModel.from_pretrained(p)",
        "AutoModel.from_config(c)",
    ],
)
def test_the_guard_knows_the_ways_of_parsing(line):
    assert parsers(ast.parse(line)) == [("", 1)]
    assert parsers(ast.parse(f"with reading(p):\n    {line}")) == []


def test_no_other_module_parses_files():
    found = {
        (path, function): line for path, tree in trees().items() for function, line in parsers(tree)
    }
    allowed = {key for key in found if (key[0], "*") in EXCEPTIONS or key in EXCEPTIONS}
    assert set(found) - allowed == set()
    used = {(f, "*") if (f, "*") in EXCEPTIONS else (f, g) for f, g in allowed}
    assert set(EXCEPTIONS) - used == set(), "exceptions that are needed no more"


def test_an_error_survives_a_process_boundary():
    error = pickle.loads(pickle.dumps(FileError("f is cut.")))
    assert str(error) == "f is cut."


def test_a_full_disk_under_a_figure_is_not_the_figures_fault():
    assert "cannot be drawn (x)" in reading.figure_left_out(ValueError("x"))
    with pytest.raises(OSError, match="No space left"):
        reading.figure_left_out(OSError(28, "No space left on device"))
