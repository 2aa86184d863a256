"""Tests of word stems: forms of one word share a stem, different words do not."""

import pytest
from hypothesis import given

from rheoscope.flow.purity.stem import IRREGULAR_FORMS, stem
from tests.texts import any_text

WORDS = [
    "table tables", "walk walks walked walking", "make makes made making", "run runs ran running", "carry carries carried carrying",
    "fly flies flew flown flying", "die dies died dying", "tie ties tied", "box boxes boxed boxing", "house houses housed housing",
    "class classes", "glass glasses", "wish wishes wished", "miss misses missed missing", "fall falls fell falling",
    "travel travels travelled travelling traveled", "control controlled controlling", "stop stops stopped stopping",
    "hope hopes hoped hoping", "agree agrees agreed agreeing", "need needs needed needing", "see sees saw seen seeing",
    "use uses used using", "be is are was were been being", "have has had having", "go goes went gone going", "do does did done",
    "say says said saying", "play plays played playing", "key keys", "family families", "city cities city's", "study studies studied",
    "man men man's", "child children", "thing things", "king kings", "spring springs", "write wrote writing written",
    "cabinet cabinets", "day days", "year years", "country countries", "add adds added adding", "try tries tried trying",
]  # fmt: skip
DISTINCT_WORDS = (
    "water wat after paper pap never forest for interest inter this thi his hi news speed spe only on family red bed bring "
    "thing th"
)


@pytest.mark.parametrize("forms", WORDS)
def test_forms_of_a_word_have_one_stem(forms: str) -> None:
    assert len({stem(form) for form in forms.split()}) == 1, [stem(form) for form in forms.split()]


def test_words_have_different_stems() -> None:
    base_forms = [forms.split()[0] for forms in WORDS]
    assert len({stem(form) for form in base_forms}) == len(base_forms)
    assert len({stem(form) for form in DISTINCT_WORDS.split()}) == len(set(DISTINCT_WORDS.split()))


def test_case_and_spaces_are_ignored_and_non_words_are_kept() -> None:
    assert stem(" The") == stem("the") == "the"
    assert [stem(token) for token in ("", " ", ",", "42", "<|endoftext|>", "ß")] == [
        "",
        "",
        ",",
        "42",
        "<|endoftext|>",
        "ss",
    ]


@given(any_text(max_size=12))
def test_a_stem_is_no_longer_than_its_word(text: str) -> None:
    """Irregular forms may be longer. Surrounding spaces do not matter."""
    plain = text.strip().casefold()
    assert len(stem(text)) <= max(len(plain), len(IRREGULAR_FORMS.get(plain, "")))
    assert stem(f"  {text} ") == stem(text)


def test_no_irregular_form_is_also_a_base_form() -> None:
    assert not set(IRREGULAR_FORMS) & set(IRREGULAR_FORMS.values())
