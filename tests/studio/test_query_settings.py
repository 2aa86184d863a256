"""Settings from a query string: parsed like command-line options, bounded, and never a file."""

import pytest

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.shapes import RheoscopeError
from rheoscope.studio.query_settings import FILE_SETTINGS, default_settings, parse_settings
from tests.studio.cases import small


@pytest.mark.parametrize(
    ("name", "query", "expected"),
    [
        ("transport", {"draws": "8", "strides": "1,2", "keep_massive": "true"}, {"draws": 8, "strides": [1, 2], "keep_massive": True}),
        ("clusters", {"angle": "0.5", "space": "sphere"}, {"angle": 0.5, "space": "sphere"}),
        ("surgery", {"heads": "1.2,L0", "M": "rank 2"}, {"heads": [(1, 2), (0, 0), (0, 1), (0, 2), (0, 3)], "M": "rank 2"}),
        ("reversed_attention", {"target": "#262", "token": "-1"}, {"target": 262, "token": -1}),
        ("transport", {}, {}),
    ],
)  # fmt: skip
def test_a_query_is_parsed_into_settings(name: str, query: dict[str, str], expected: dict[str, object]) -> None:
    assert parse_settings(analysis_by_name(name), query, small()) == expected


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("transport", {"draws": "1001"}),
        ("transport", {"draws": "-5000"}),
        ("transport", {"draws": "many"}),
        ("transport", {"draws": "1e3"}),
        ("transport", {"nothing": "1"}),
        ("transport", {"strides": "1,x"}),
        ("transport", {"strides": ",".join(["1"] * 1001)}),
        ("transport", {"keep_massive": "maybe"}),
        ("clusters", {"angle": "nan"}),
        ("clusters", {"angle": "1e9"}),
        ("readout", {"target": "99999999999"}),
        ("purity", {"labels": "/etc/passwd"}),
        ("senses", {"word_list": "/etc/passwd"}),
        ("surgery", {"heads": "9.9.9"}),
        ("prefix_stability", {"prefixes": "x" * 3000}),
    ],
)
def test_an_invalid_query_is_refused_in_one_line(name: str, query: dict[str, str]) -> None:
    with pytest.raises(RheoscopeError) as error:
        parse_settings(analysis_by_name(name), query, small())
    assert "\n" not in str(error.value)
    assert "passwd" not in str(error.value)


TOKENIZER_OUTPUT = "Mapping[str, typing.Any]"
"""A text may be the output of a tokenizer, which is a mapping but no file."""


def test_no_setting_of_a_query_names_a_file() -> None:
    """Settings that accept a mapping also accept the name of a file. All of them must be listed."""
    for name in ANALYSIS_MODULES:
        assert not set(FILE_SETTINGS) & set(default_settings(analysis_by_name(name)))
        for setting, parameter in analysis_by_name(name).settings.items():
            if "Mapping" in str(parameter.annotation).replace(TOKENIZER_OUTPUT, ""):
                assert setting in FILE_SETTINGS, (name, setting)
