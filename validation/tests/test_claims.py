"""Numbers of README, proofs and questions say which sources they are of."""

import re

import pytest

from validation.claims import CLAIMING, RESULTS, Claims
from validation.origin import ROOT, Origin, Tree, origins_of, with_origins

PAGES = sorted((ROOT / RESULTS).glob("*.md"))
BY_HAND = {
    "branches.md": "tables of two commands, put together",
    "budget.md": "tables of the study in a text by hand",
    "frontier.md": "tables of the study in a text by hand",
    "frontier_coverage.md": "rows that are printed, put together",
    "frontier_steps.md": "the table of the check in a text by hand",
    "gpu.md": "rows of benchmarks/gpu.sh that were finished",
    "optimizers.md": "rows are tests",
    "pair_classes.md": "quotes tables.md of the run",
    "second_device.md": "a suite of tests",
    "sketching.md": "quotes tables of the run",
    "smollm2_gsm8k.md": "outputs of verbs",
    "smollm2_sentence.md": "quotes tables of the runs",
    "throughput.md": "rows that are printed, put together",
    "token_estimates.md": "quotes tables.md of the run",
    "toy_attribution.md": "quotes tables.md of the run",
}
"""Pages that no script writes; `python -m validation.claims --made` says where they come from."""
_MODULE = re.compile(r"-m ((?:validation|benchmarks|studies)[.]\w+)")
SCRIPT = "src/isentrope/a.py"
COMMAND = "python -m validation.study"


@pytest.fixture
def repository(tmp_path):
    """A study that imports one of two modules, its page, and a README that cites it."""
    files = {
        "validation/study.py": "def main():\n    from isentrope.a import rate\n    print(rate)\n",
        SCRIPT: '"""A rate."""\nrate = 0.25  # per step\n',
        "src/isentrope/b.py": "other = 1\n",
        "docs/results/study.md": "# Study\n\nThe rate is .25.\n",
        "README.md": "The rate is .25 ([study](docs/results/study.md)).\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    origin = Tree(root=tmp_path).origin(COMMAND, "2026-11-22")
    page = tmp_path / "docs/results/study.md"
    page.write_text(with_origins(page.read_text(), [origin]))
    return tmp_path


def claims(root):
    return Claims(root, ["README.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_of_results_says_command_commit_date_and_sources(page):
    assert origins_of(page.read_text(encoding="utf-8")), (
        f'python -m validation.claims --made {RESULTS}/{page.name} "COMMAND" writes it'
    )


def test_every_number_has_a_page_a_test_or_a_date():
    assert [str(x) for x in Claims().all() if x.state == "without origin"] == []


def test_a_date_beside_a_link_is_that_of_its_page():
    assert Claims().wrong_dates() == []


def test_what_writes_a_page_says_where_it_comes_from():
    silent = set()
    for page in PAGES:
        modules = _MODULE.findall(" ".join(map(str, origins_of(page.read_text(encoding="utf-8")))))
        texts = [(ROOT / f"{x.replace('.', '/')}.py").read_text(encoding="utf-8") for x in modules]
        if not any("write_results(" in text or "write_page(" in text for text in texts):
            silent.add(page.name)
    assert silent == set(BY_HAND)


def test_a_change_of_what_a_study_imports_makes_its_numbers_stale(repository):
    (claim,) = claims(repository).all()
    assert (claim.state, claim.numbers) == ("fresh", (".25",))
    (repository / SCRIPT).write_text('"""A rate."""\nrate = 0.5\n')
    (claim,) = claims(repository).all()
    assert claim.state == "stale"


def test_wording_and_other_modules_make_nothing_stale(repository):
    (repository / SCRIPT).write_text('"""The rate of a step."""\n\nrate = .25\n')
    (repository / "src/isentrope/b.py").write_text("other = 2\n")
    (claim,) = claims(repository).all()
    assert claim.state == "fresh"


def test_a_date_comes_and_goes_with_the_age_of_the_page(repository):
    readme = repository / "README.md"
    fresh = readme.read_text()
    (repository / SCRIPT).write_text("rate = 0.5\n")
    readme.write_text(claims(repository).dated("README.md"))
    assert readme.read_text() == fresh.replace("md)", "md) of 2026-11-22")
    (claim,) = claims(repository).all()
    assert claim.state == "dated"
    (repository / SCRIPT).write_text("rate = 0.25\n")
    assert claims(repository).dated("README.md") == fresh


def test_a_date_of_another_day_and_a_number_without_page_are_found(repository):
    readme = repository / "README.md"
    readme.write_text("It is .25 ([study](docs/results/study.md) of 2026-11-23).\n\nIt is .75.\n")
    assert len(claims(repository).wrong_dates()) == 1
    assert [x.state for x in claims(repository).all()] == ["fresh", "without origin"]


def test_origins_of_other_commands_stay_and_the_same_is_replaced():
    first = Origin("2026-11-21", "aaaaaaaa", "0" * 12, "python -m validation.price")
    other = Origin("2026-11-22", "bbbbbbbb", "1" * 12, "pytest tests/update")
    again = Origin("2026-11-23", "cccccccc+", "2" * 12, first.command)
    text = with_origins(with_origins("# Page\n", [first, other]), [again])
    assert origins_of(text) == [other, again]


def test_the_claiming_pages_exist():
    assert all((ROOT / page).is_file() for page in CLAIMING)
