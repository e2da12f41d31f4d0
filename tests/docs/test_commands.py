"""Every command of README and docs is one that exists; the cheap ones are run."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from isentrope.cli.main import app
from isentrope.config.io import KINDS, kind_of, load_config, read_yaml
from tests.docs.pages import PAGES, ROOT, blocks, commands, every_command

EVERY = every_command()
TARGETS = set(re.findall(r"^([a-z0-9-]+)(?: [a-z0-9-]+)*:", (ROOT / "Makefile").read_text(), re.M))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
VERBS = [c for c in EVERY if c.program == "isentrope"]
OURS = {"studies", "validation", "benchmarks", "tests", "examples"}
"""Packages of a clone whose modules are commands where a page runs them."""
RUN = ("start", "training", "two_lines", "own_checkpoint", "studies", "evaluation", "report")
"""Pages whose commands are run, in the order in which one needs what another made."""


def parsed(words) -> tuple[str, dict]:
    """What the command line makes of a verb and its arguments."""
    command, rest = typer.main.get_command(app), list(words)
    while isinstance(command, TyperGroup):
        command, rest = command.commands[rest[0]], rest[1:]
    return command.name, command.make_context(command.name, rest).params


def test_every_verb_is_understood_down_to_its_settings():
    known = {*typer.main.get_command(app).commands, "--help", "--version", "--install-completion"}
    for command in VERBS:
        if len(command.words) == 2 or command.words[-1] == "--help":
            assert command.words[1] in known, command
            continue
        _, given = parsed(command.words[1:])
        path = ROOT / str(given.get("config"))
        if path.is_file():
            content = read_yaml(path)
            load_config(content, given["settings"] or (), KINDS[kind_of(content)])
        elif given.get("config") and not command.general:
            made = ("runs/", "converted/")  # by commands of these pages
            assert str(given["config"]).startswith(made), f"{path} is not there"


def test_every_target_module_script_and_extra_exists():
    for command in EVERY:
        rest = command.words[1:]
        if command.program == "make":
            assert set(rest) <= TARGETS, command
        elif "-m" in rest:
            module = rest[rest.index("-m") + 1]
            spec = importlib.util.find_spec(module)
            assert spec is not None, command
            if module.partition(".")[0] in OURS:
                assert "__main__" in Path(str(spec.origin)).read_text(encoding="utf-8"), command
        elif command.program.startswith("python") and "-c" in rest:
            compile(rest[rest.index("-c") + 1], str(command), "exec")
        elif command.program.startswith("python"):
            assert (ROOT / rest[0]).is_file(), command
        elif command.program == "pip":
            extras = re.findall(r"\[(\w+)\]", " ".join(command.words))
            assert set(extras) <= set(EXTRAS), command


def named_tests(text: str) -> list[str]:
    """Paths of tests in the running text of a page."""
    return re.findall(r"`((?:\w+/)?tests/[\w/]+(?:\.py)?)`", text)


def test_a_test_that_a_page_names_exists():
    named = [path for page in PAGES for path in named_tests(page.read_text(encoding="utf-8"))]
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_named_tests_are_found_in_the_evidence_of_the_claims():
    claims = (ROOT / "docs" / "proofs.md").read_text(encoding="utf-8")
    assert "tests/checks/test_planted_faults.py" in named_tests(claims)


def test_a_command_with_a_wrong_option_setting_or_verb_is_refused():
    with pytest.raises(Exception, match=r"No such option:? .?--sett"):
        parsed(["measure", "x.yaml", "--sett", "a.b=1"])
    with pytest.raises(KeyError, match="mesure"):
        parsed(["mesure", "x.yaml"])
    with pytest.raises(ValueError, match="eta_list"):
        load_config(read_yaml(ROOT / "configs/measure_addition.yaml"), ["estimator.eta_lst=[1]"])


def test_commands_are_found_in_blocks_in_text_and_over_broken_lines(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.docs.pages.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "```\nisentrope demo   a remark\nmake \\\n  test  # so\nrun/\n```\n`python -m x.y`"
    )
    found = [" ".join(c.words) for c in commands(page)]
    assert found == ["isentrope demo", "make test", "python -m x.y"]


def test_the_settings_shown_on_the_page_are_those_that_the_script_writes(tmp_path):
    shown, *_ = blocks(ROOT / "docs" / "own_checkpoint.md", "yaml")
    (tmp_path / "measure.yaml").write_text(shown)
    config = load_config(tmp_path / "measure.yaml")
    assert config.batch_config.U_file == "runs/own/U.parquet"


def cheap() -> list[tuple[str, ...]]:
    """The commands to run: each once, those of the toy and of tiny models."""
    pages = [ROOT / "docs" / f"{name}.md" for name in RUN]
    found = [c for page in pages if page in PAGES for c in commands(page) if not c.general]
    wanted = [c for c in found if c.program in {"isentrope", "python"} and len(c.words) > 2]
    lines = [("isentrope", "demo"), *(c.words for c in wanted if "-m" not in c.words)]
    return list(dict.fromkeys((Path(w[0]).name, *w[1:]) for w in lines))


def smaller(words: tuple[str, ...]) -> list[str]:
    """The same command on a smaller sample: its way through the code, not its numbers."""
    if words[:2] == ("isentrope", "demo"):
        return [*words, "--evaluation-size", "32", "--steps", "20"]
    if "configs/measure_addition.yaml" in words:
        return [*words, *("--set", "batch_config.B_E=24", "--set", "batch_config.B_U=4")]
    if "configs/evaluate_toy.yaml" in words:
        return [*words, *("--set", "evaluation.n_prompts=16")]
    return ["runs/short" if word == "runs/other" else word for word in words]


@pytest.mark.slow
def test_the_commands_of_the_pages_run_in_order_and_then_their_python(tmp_path):
    for name in ("configs", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    isentrope, python = [sys.executable, "-m", "isentrope"], [sys.executable]
    lines = [smaller(words) for words in cheap()]
    lines = [
        [*(isentrope if program == "isentrope" else python), *rest] for program, *rest in lines
    ]
    for name in ("start", "training", "own_checkpoint"):  # the first snippet of each
        code = blocks(ROOT / "docs" / f"{name}.md", "python")[0]
        lines.append([*python, "-c", code])
    for line in lines:
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(line)}\n{done.stdout}\n{done.stderr}"
        print(" ".join(line[1:]), flush=True)
