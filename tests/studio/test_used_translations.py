"""The catalogue of a single file: no template that the page may need is lost, and the others are left out."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rheoscope.studio.used_translations import used_translations

START = "(globalThis.RHEOSCOPE_CATALOGUES ??= {}).zh = "


def kept_templates(templates: list[str], *contents: bytes) -> set[str]:
    script = START + json.dumps(dict.fromkeys(templates, "译"), ensure_ascii=False)
    reduced = used_translations(script, contents)
    assert reduced.startswith(START)
    return set(json.loads(reduced.removeprefix(START)))


@given(st.text(min_size=1), st.booleans())
def test_a_template_of_a_response_stays_however_it_is_escaped(template: str, is_ascii: bool) -> None:
    content = json.dumps({"sentence": {"template": template}}, ensure_ascii=is_ascii)
    assert kept_templates([template], b"\x00\x01", content.encode("utf-8", "surrogatepass")) == {template}


@pytest.mark.parametrize("quote", ['"', "'", "`"])
def test_a_template_of_the_script_stays(quote: str) -> None:
    template = 'the head\'s “{name}” is at "{place}"\nof {n}'
    escaped = template.replace(quote, f"\\{quote}").replace("\n", "\\n").replace("“", "\\u201C")
    assert kept_templates([template], f"const t={quote}{escaped}{quote}".encode()) == {template}


def test_other_templates_are_left_out() -> None:
    assert kept_templates(["{n} heads", "{n} layers"], b'"{n} heads"', b"lay", b"ers") == {"{n} heads"}
