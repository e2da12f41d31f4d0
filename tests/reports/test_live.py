"""The page that follows runs: what it shows while files come, change, break and are mended."""

import json
import shutil
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from isentrope.reports import live, serve
from tests.reports.made_up import make_run


@pytest.fixture(autouse=True)
def _without_rest(monkeypatch):
    monkeypatch.setattr(live, "REST", 0.0)
    monkeypatch.setattr(live, "SHORTEST_REST", 0.0)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A run with a measurement alone, which is quickly drawn."""
    run = make_run(tmp_path_factory.mktemp("template") / "one", 2, 2, steps=(8,))
    for verb in ("audit", "influence", "kernel"):
        shutil.rmtree(run / "measurements" / f"{verb}_step_8")
    return run


@pytest.fixture
def run(tmp_path, template):
    return shutil.copytree(template, tmp_path / "runs" / "one")


def add_step(run, step):
    """A line of the training log."""
    log = run / "logs" / "metrics.jsonl"
    last = json.loads(log.read_text().splitlines()[-1])
    with open(log, "a") as file:
        file.write(json.dumps(last | {"step": step}) + "\n")


def files_of(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@contextmanager
def served(page):
    with serve.serving(page, 0) as address:

        def get(path="", **headers):
            request = urllib.request.Request(address + path, headers=headers)
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            try:
                with opener.open(request) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        yield get


def test_an_empty_run_waits_and_the_page_fills_and_follows(tmp_path, run):
    hidden = run / "logs"
    logs = hidden.rename(tmp_path / "logs")
    measurements = (run / "measurements").rename(tmp_path / "measurements")
    page = live.LivePage([str(run)])
    page.refresh()
    with served(page) as get:
        assert "holds no training log" in get()[1]
        logs.rename(hidden)
        page.refresh()
        assert "trade_off" not in get()[1]
        before = files_of(run)
        measurements.rename(run / "measurements")
        page.refresh()
        waiting, first = get()[1], json.loads(get("state")[1])
        assert "One step from step_8 at the training rate" in waiting
        page.refresh()
        assert json.loads(get("state")[1]) == first  # nothing has changed
        add_step(run, 4711)
        page.refresh()
        assert json.loads(get("state")[1])["version"] != first["version"]
        assert "to 4711" in get()[1]
        written = set(files_of(run)) - set(before) - set(files_of(run / "measurements"))
        assert written == {run / "measurements"}


def test_a_file_that_breaks_leaves_the_last_page_until_it_is_mended(run):
    page = live.LivePage([str(run)])
    page.refresh()
    good = page.shown
    results = run / "measurements" / "measure_step_8" / "results.json"
    content = results.read_text()
    results.write_text('{"cut')
    page.refresh()
    assert page.shown.body == good.body
    assert "kept because" in page.shown.says
    assert "results.json" in page.shown.says
    add_step(run, 4711)
    page.refresh()
    assert page.shown.version == good.version
    results.write_text(content)
    page.refresh()
    assert "kept" not in page.shown.says
    assert "to 4711" in page.shown.body.decode()


def test_a_run_that_is_removed_or_emptied_leaves_the_last_page(run):
    page = live.LivePage([str(run)])
    page.refresh()
    good = page.shown
    for folder in (run / "logs", run / "measurements"):
        shutil.rmtree(folder)
    page.refresh()
    assert page.shown.body == good.body
    shutil.rmtree(run)
    page.refresh()
    assert page.shown.body == good.body
    assert str(run) in page.shown.says


def test_an_error_that_nobody_foresaw_does_not_end_the_server(run, monkeypatch):
    page = live.LivePage([str(run)])
    monkeypatch.setattr(live, "draw_column", lambda *_: 1 / 0)
    page.refresh()
    assert "division by zero" in page.shown.body.decode()


def test_a_page_of_two_runs_shows_the_one_that_has_begun(tmp_path, run):
    other = tmp_path / "runs" / "two"
    other.mkdir()
    page = live.LivePage([str(run), str(other)])
    page.refresh()
    assert "two holds no training log" in page.shown.body.decode()
    shutil.copytree(run / "measurements", other / "measurements")
    page.refresh()
    assert 'id="b_delta_h"' in page.shown.body.decode()


def test_nothing_is_built_while_nobody_looks_or_too_soon(run, monkeypatch):
    built = []
    monkeypatch.setattr(live.LivePage, "_build", lambda page: built.append(page))
    page = live.LivePage([str(run)])
    page.seen -= live.UNWATCHED + 1
    page.refresh()
    assert not built
    monkeypatch.setattr(live, "SHORTEST_REST", 60.0)
    page.seen += live.UNWATCHED
    page.refresh()
    add_step(run, 4711)
    page.refresh()
    assert len(built) == 1


def test_nothing_but_the_page_is_served_and_to_this_machine_alone(run):
    page = live.LivePage([str(run)])
    with served(page) as get:
        assert get()[0] == get("state")[0] == 200
        for path in ("config.yaml", "../config.yaml", "%2e%2e/config.yaml", "/etc/passwd", "logs/"):
            assert get(path)[0] == 404, path
        for name in ("evil.example", "evil.example:80", "127.0.0.1"):
            assert get(Host=name)[0] == 403, name
        assert "connect-src 'self'" in get()[1]
    assert not [t for t in threading.enumerate() if "serve_forever" in t.name]


def test_a_port_that_is_taken_is_refused_with_what_to_do(run):
    page = live.LivePage([str(run)])
    with serve.serving(page, 0) as address:
        port = int(address.strip("/").rpartition(":")[2])
        with pytest.raises(serve.PortTakenError), serve.serving(page, port):
            pass
