"""The benchmark of the command line's start, on times that nobody measured."""

from benchmarks import startup


def test_a_ratio_is_the_median_of_pairs_and_not_the_ratio_of_medians():
    times = {startup.EMPTY: [1.0, 10.0, 1.0], startup.TYPER: [2.0, 30.0, 4.0]}
    assert startup.ratio(times, startup.TYPER, startup.EMPTY).startswith("3.00 ")


def test_every_command_is_a_row():
    times = {name: [1.0, 2.0, 4.0] for name in startup.commands()}
    page = startup.page(times)
    assert all(f"| {name} | 2000 | 1.00 (" in page for name in times)


def test_a_round_runs_every_command_and_the_first_is_dropped(monkeypatch):
    ran = []
    monkeypatch.setattr(startup, "seconds", lambda code: ran.append(code) or float(len(ran)))
    times = startup.measure(2, seed=1)
    codes = list(startup.commands().values())
    assert [sorted(ran[k : k + len(codes)]) for k in range(0, len(ran), len(codes))] == [
        sorted(codes)
    ] * 3
    assert {len(values) for values in times.values()} == {2}
    assert min(x for values in times.values() for x in values) > len(codes)
