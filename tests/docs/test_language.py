"""README and docs are in plain technical English: no private idiom, no long sentence or line."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.docs.pages import ROOT

FIRST_PAGES = (
    *("architecture", "collapse", "commands", "glossary", "index", "proofs", "report", "start"),
    *("studies", "two_lines"),
)
SHORT = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in FIRST_PAGES)]
"""Pages whose sentences have at most `MAX_WORDS` words."""
GENERATED = {"trl_settings.md"}
"""Pages that are made from the code."""
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "AGENTS")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "docs" / "gallery" / "index.md",
]
SOURCE_FOLDERS = ["docs", "configs", "src"]
"""Folders whose Python and YAML files have to pass too; "benchmarks" can be added."""
SAVED_KEYS = ['"told"']
"""Keys of saved states, which keep their names."""
FILES = [p for p in PAGES if p.name not in GENERATED] + [
    p
    for folder in SOURCE_FOLDERS
    for p in sorted((ROOT / folder).rglob("*"))
    if p.suffix in {".py", ".yaml"}
]
MAX_WORDS = 35
MAX_COLUMNS = 100

_COUNTED = (
    r"(?:nats|rows|lines|numbers|entries|passes|responses|sequences|samples|prompts|groups|seconds"
    r"|batches|folders|files|questions|sentences|backward pass"
    r"|(?:one|an?) (?:row|line|list|entry|number|weight|response|reward|seed|array|dictionary|point"
    r"|colour|panel|sentence|demonstration|update|try|file|folder|label))"
)
_UNIT = (
    r"(?:rows?|lines?|folder|file|sequence|token|step|prompt|response|second|checkpoint|metric"
    r"|setting|pass|reading|rate|learning rate|process|group|batch|page|question|meaning|layer"
    r"|number|figure|repeat|control|proxy|quantity)"
)
_VERB = r"(?:needs?|has|is|was|can|could|makes?|takes?|holds?|moves?|draws?)"
"""After the unit it says that the unit is a subject: the prompts a batch needs."""


class Banned(NamedTuple):
    """A phrase of no standard English, what to write, and an example that must be found."""

    pattern: str
    write: str
    example: str


BANNED = [
    Banned(rf"\b{_COUNTED} an? {_UNIT}\b(?! {_VERB}\b)", "per", "It writes one row a sequence."),
    Banned(r"\btold\b", "predicted, printed, stated", "It is told before the step."),
    Banned(r"\bseen after\b", "measured after", "What was seen after it."),
    Banned(r"\bto the bit\b", "bit-for-bit identical", "A killed run goes on to the bit."),
    Banned(
        r"\b(?:comes?|came|coming) out the same\b", "is identical", "The table comes out the same."
    ),
    Banned(r"\bfit to be measured\b", "can be measured", "Is it fit to be measured?"),
    Banned(r"\bsurer\b", "more confident", "It makes a model surer of itself."),
    Banned(
        r"\bbudget (?:that )?(?:does not )?closes?\b",
        "the parts sum to the total",
        "A budget that closes.",
    ),
    Banned(
        r"\bcloses the budget\b|\bcloses to\b", "the parts sum to", "momentum, decay; closes to 0"
    ),
    Banned(r"\bluck\b", "batch-to-batch variance", "This is the luck of the batch."),
    Banned(r"\ba hint\b", "indicative only", "The value is a hint at best."),
    Banned(
        r"\bfloors high\b",
        "at least three times the rounding floor",
        "It stands three floors high.",
    ),
    Banned(
        r"\b(?:right|wrong) (?:answers?|responses?)\b"
        r"|\b(?:answers?|responses?) (?:is|are) (?:right|wrong)\b",
        "correct, incorrect",
        "A response is right if it earns 1.",
    ),
    Banned(r"\b(?:leave|leaves|left|leaving)(?: \w+){0,2} away\b", "omit", "Leave the key away."),
    Banned(
        r"(?<!there )\bis no (?:folder|file|checkpoint|function|setting|key|field|number|model)\b",
        "is not a ...",
        "runs/x is no folder",
    ),
    Banned(r"\bis in order\b", "is valid", "The file is in order; it measures step_4."),
    Banned(
        r"\b(?:goes|going|went|gone|go) on (?:to|with|where|as|from)\b",
        "resumes, continues",
        "It goes on where it was.",
    ),
    Banned(
        r"\bheld against\b|\bholds? \w+ against\b", "compared with", "It is held against autograd."
    ),
    Banned(r"\b(?:speak|speaks|spoke) for\b", "represent", "They can still speak for the policy."),
    Banned(
        r"\bthe \w+'s word\b|\bword for it\b|\bneeds a word\b",
        "prediction",
        "The probe's word holds.",
    ),
    Banned(
        r"\bgoes blind\b|\bdrowns?\b",
        "is below the rounding error",
        "The change drowns in rounding.",
    ),
    Banned(r"\bapiece\b", "each", "Eleven scripts, one figure apiece."),
    Banned(r"\bwith a light on\b", "(a plain heading)", "Training, with a light on"),
    Banned(r"\bfor those who ask\b|\bfor the asking\b", "on request", "It is for those who ask."),
    Banned(r"\bfor nothing\b", "falsely, without effect", "How often it alarms for nothing."),
    Banned(r"\bno better choice\b|\bno good\b", "not better", "It is no better choice."),
    Banned(
        r"\bwhat is asked of\b|\basked of (?:it|the)\b",
        "requested of",
        "What is asked of the step.",
    ),
    Banned(r"\bto be believed\b", "trustworthy", "Is it to be believed?"),
    Banned(
        r"\bhow sure\b|\bsure of (?:itself|answers)\b", "confident", "How good, how long, how sure."
    ),
    Banned(
        r"\b(?:refused|warned|said) in (?:a|one) sentence\b",
        "refused with a message",
        "It is refused in a sentence.",
    ),
]


def prose(text: str) -> str:
    """The text without program output and names: the lines stay where they are.

    Args:
        text: Markdown or Python.

    Returns:
        The text with fenced blocks that are not Python or YAML, and inline code, blanked.
    """

    def blank(match: re.Match[str]) -> str:
        kept = match.groupdict().get("language") in {"python", "yaml"}
        return match[0] if kept else re.sub(r"[^\n]", " ", match[0])

    fence = r"^ *```(?P<language>\w*)[^\n]*\n.*?^ *```"
    text = re.sub(fence, blank, text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]+`", blank, text)


def idioms(text: str) -> list[str]:
    """Banned phrases of a text, each with its line, also where a line break splits them."""
    for key in SAVED_KEYS:
        text = text.replace(key, "")
    plain = re.sub(r"\n[ #>]*", "\n", prose(text))
    flat = plain.replace("\n", " ")
    found = [
        (
            m.start(),
            f"line {plain.count(chr(10), 0, m.start()) + 1}: {m[0]!r}, write {rule.write!r}",
        )
        for rule in BANNED
        for m in re.finditer(rule.pattern, flat, re.IGNORECASE)
    ]
    return [message for _, message in sorted(found)]


def paragraphs(text: str) -> list[str]:
    """Running text: without code, tables, headings, figures and the marks of lists."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(?:#|\||!\[).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^ *(?:[-*]|\d+\.) ", "\n", text, flags=re.MULTILINE)
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def long_sentences(text: str, most: int = MAX_WORDS) -> list[str]:
    """Sentences of more words than `most`; a sentence ends in . ! or ? and a space."""
    sentences = [s for part in paragraphs(text) for s in re.split(r"(?<=[.!?])[)*]* ", part)]
    return [s for s in sentences if sum(bool(re.search(r"\w", w)) for w in s.split()) > most]


def long_lines(text: str) -> list[str]:
    """Lines of running text beyond the limit that a line break could shorten."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^\$\$.*?\$\$$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [x for x in text.splitlines() if not x.startswith(("|", "![", "#", "    "))]
    atoms = re.compile(r"`[^`]*`|\$[^$]*\$")
    return [
        x for x in lines if len(x) > MAX_COLUMNS and " " in atoms.sub("", x.strip()).strip("- ")
    ]


def faults(of: Callable[[str], list[str]], files: list[Path]) -> dict[str, list[str]]:
    """What a rule finds, by file."""
    found = {str(p.relative_to(ROOT)): of(p.read_text(encoding="utf-8")) for p in files}
    return {path: lines for path, lines in found.items() if lines}


def test_no_page_has_a_private_idiom():
    assert faults(idioms, FILES) == {}


def test_the_readme_is_read_in_one_sitting():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_first_pages_have_short_sentences():
    assert faults(long_sentences, SHORT) == {}


def test_running_text_is_wrapped():
    assert faults(long_lines, [p for p in FILES if p.suffix == ".md"]) == {}


def test_a_planted_idiom_is_found_with_its_line():
    for rule in BANNED:
        planted = f"# A page\n\nA sound sentence.\n{rule.example}\n"
        assert any(line.startswith("line 4") for line in idioms(planted)), rule
        assert idioms(planted.replace(rule.example, f"`{rule.example}`")) == []


def test_an_idiom_is_found_over_a_line_break_and_in_python_but_not_in_output():
    assert idioms("There is one row a\n# sequence.") != []
    assert idioms("```python\nx  # one row a sequence\n```") != []
    assert idioms("```\none row a sequence\n```") == []


def test_sound_sentences_raise_no_false_alarm():
    sound = "One row per sequence. Each token a policy draws has a weight. Two passes at most. "
    sound += "How many prompts a batch needs. There is no file x.csv. The right side is padded. "
    sound += "A step, a token, a prompt."
    assert idioms(sound) == []


def test_a_planted_long_sentence_is_found_and_tables_and_code_are_left_out():
    long = " ".join(["word"] * (MAX_WORDS + 1)) + "."
    assert long_sentences(f"Short one.\n{long} Another.") == [long]
    assert long_sentences(f"- item\n- {long}") == [long]
    assert long_sentences(f"| {long} |\n\n```\n{long}\n```\n\n# {long}\n") == []


def test_a_planted_long_line_is_found_but_no_table():
    long = "word " * 30
    assert long_lines(f"Short.\n{long}\n") == [long]
    assert long_lines(f"| {long} |\n\n```\n{long}\n```\n") == []


def test_no_row_of_a_table_is_a_sentence_before_empty_cells():
    """A sentence that is no cell stands under the table: it makes one of its columns too wide."""
    row = re.compile(r"\| [^|]{60,} \|( *\|){2,}$", re.MULTILINE)
    pages = sorted((ROOT / "docs").rglob("*.md"))
    assert len(pages) > 80
    assert not [str(page) for page in pages if row.search(page.read_text(encoding="utf-8"))]
