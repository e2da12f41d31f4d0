"""What is read is meant: configurations survive their dump, cut and damaged ones are refused."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import ConfigError, dump_config, load_config
from isentrope.config.measure import MeasureConfig
from isentrope.config.strict_yaml import FIRST_LINE, LAST_LINE, dump, parse
from isentrope.config.train import SftConfig, TrainConfig

STARTS = {
    MeasureConfig: {"checkpoint": {"checkpoint_path": "x"}},
    EvaluateConfig: {"checkpoint": {"checkpoint_path": "x"}},
    TrainConfig: {"model": {"path": "toy"}},
    SftConfig: {"model": {"path": "toy"}},
}
MANY = [40, pytest.param(4000, marks=pytest.mark.slow)]
"""Examples of each property: a few in every run of the tests, many in the slow ones."""

NUMBERS_IN_DISGUISE = (
    *("1e5", "1e-5", "+1e3", "-.5E9", ".inf", ".nan", "0x1f", "0o7", "010", "1_000", "1:30"),
    *("~", "null", "Null", "yes", "no", "on", "y", "true", "True", "=", "<<", "2001-01-01"),
    *("", " ", " x ", "- a", "a: b", "# c", "c # d", "&x", "*x", "!x", "%", "@", "`", "'", '"'),
    *("a\nb", "a\n\n b", "\t", "\u2028", "\x85", "\x1b[31m", "é\U0001f600", "\u202e", "\ufeff"),
    *("../..", LAST_LINE, FIRST_LINE, "a" * 2000 + " " + "b" * 900, "\x7f", "\\", "---", "..."),
)
texts = st.sampled_from(NUMBERS_IN_DISGUISE) | st.text(max_size=30)


def keys_with(root, wanted):
    """(section, key) of the values that a condition holds for."""
    content = load_config(STARTS[root], root=root).model_dump()
    sections = ((name, part) for name, part in content.items() if isinstance(part, dict))
    return [(name, key) for name, part in sections for key, value in part.items() if wanted(value)]


def with_value(root, section, key, value):
    start = STARTS[root]
    return {**start, section: {**start.get(section, {}), key: value}}


def read_or_sentence(file, root):
    try:
        return load_config(file, root=root)
    except ConfigError as error:
        return str(error)


def holds(strategy, examples):
    """Decorate a property so that it runs on so many examples."""

    def decorate(check):
        run = settings(max_examples=examples, deadline=None, derandomize=True, database=None)
        return run(given(strategy)(check))()

    return decorate


@pytest.mark.parametrize("examples", MANY)
@pytest.mark.parametrize("root", STARTS)
def test_every_text_that_is_accepted_survives_its_own_dump(root, examples, tmp_path):
    keys = keys_with(root, lambda value: value is None or isinstance(value, str))
    file = tmp_path / "config.yaml"

    @holds(st.tuples(st.sampled_from(keys), texts), examples)
    def _(case):
        (section, key), text = case
        try:
            config = load_config(with_value(root, section, key, text), root=root)
        except ConfigError:
            return
        file.write_text(dump_config(config), encoding="utf-8")
        assert load_config(file, root=root) == config


plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("examples", MANY)
def test_nested_settings_survive_their_dump(examples):
    @holds(st.dictionaries(texts, plain_values, min_size=1, max_size=3), examples)
    def _(content):
        assert parse(dump(content), "here") == content


@pytest.mark.parametrize("examples", MANY)
@pytest.mark.parametrize("comments", [False, True])
def test_a_file_of_ours_that_was_cut_is_refused_or_complete(comments, examples, tmp_path):
    config = load_config(STARTS[TrainConfig] | {"trainer": {"epsilon": 0.1}}, root=TrainConfig)
    content = dump_config(config, comments=comments).encode()
    file = tmp_path / "config.yaml"

    @holds(
        st.integers(0, len(content) - 1) | st.integers(len(content) - 30, len(content) - 1),
        examples,
    )
    def _(end):
        file.write_bytes(content[:end])
        found = read_or_sentence(file, TrainConfig)
        assert found == config or str(file) in found


@pytest.mark.parametrize("examples", MANY)
def test_damaged_bytes_give_a_configuration_or_a_sentence(examples, tmp_path):
    content = dump_config(load_config(STARTS[SftConfig], root=SftConfig)).encode()
    file = tmp_path / "config.yaml"
    pieces = st.sampled_from([b"\x00", b"\xff", b": ", b"[", b"}", b"&a *a", b"!!int ", b"\t- "])

    @holds(st.tuples(st.integers(0, len(content)), st.integers(0, 40), pieces), examples)
    def _(case):
        start, length, new = case
        file.write_bytes(content[:start] + new + content[start + length :])
        found = read_or_sentence(file, SftConfig)
        assert isinstance(found, SftConfig) or (len(found) < 1000 and "\n" not in found)


@pytest.mark.parametrize("root", STARTS)
def test_no_value_that_means_nothing_is_accepted(root):
    thresholds = {"right_above", "change"}  # any number is one
    odd = [math.nan, math.inf, -math.inf, 1e308, -1e308, 10**30, -1, "\x00", " ", "\ud800"]
    for section, key in keys_with(root, lambda value: True):
        for value in odd:
            if key in thresholds and value == -1:
                continue
            with pytest.raises(ConfigError):
                load_config(with_value(root, section, key, value), root=root)
    for section, key in keys_with(root, lambda v: not isinstance(v, (bool, type(None)))):
        with pytest.raises(ConfigError):
            load_config(with_value(root, section, key, True), root=root)
