"""Every language says everything that the studio can say, nothing that it no longer says, and all of each sentence."""

import re

import pytest

from tests.studio import spoken
from tests.studio.tongue import GAP, LANGUAGES, Tongue, pattern, said_in

OTHERS = pytest.mark.parametrize("language", LANGUAGES)


def canonical(template: str) -> str:
    """A template whatever its gaps are called."""
    return GAP.sub("{}", template)


@OTHERS
def test_nothing_is_without_words(language: str) -> None:
    said = said_in(language)
    known, tongue = {canonical(text) for text in said}, Tongue(said)
    texts = {text for text in spoken.sentences() | spoken.errors() if canonical(text) not in known}
    texts |= {text for text in spoken.declared() if tongue.best(text)[1] >= 1}
    assert not texts, f"{language}.ts does not say:\n" + "\n".join(sorted(texts))


@OTHERS
def test_nothing_is_said_that_is_never_asked_for(language: str) -> None:
    """An entry is written somewhere, is declared or the name of a field, or is the pattern of several declarations."""
    declared = spoken.declared()
    asked = {canonical(text) for text in spoken.everything_written()} | declared | spoken.names()
    shapes = {text: pattern(text, "") for text in said_in(language) if GAP.search(text)}
    many = {text for text, shape in shapes.items() if sum(shape.fullmatch(one) is not None for one in declared) > 1}
    stale = {text for text in said_in(language) if canonical(text) not in asked and text not in many}
    assert not stale, f"{language}.ts says what nobody asks for:\n" + "\n".join(sorted(stale))


@OTHERS
def test_what_is_filled_in_is_filled_in(language: str) -> None:
    """The gaps of a sentence are those of the English, but for an English ending (head{1}: head, heads)."""
    for text, other in said_in(language).items():
        asked, given = {name for name, _ in GAP.findall(text)}, {name for name, _ in GAP.findall(other)}
        endings = set(re.findall(r"(?<=[a-z])\{(\w+)\}", text))
        assert asked - endings <= given <= asked, f"{language}.ts: {text!r} → {other!r}"
        assert other.strip(), text


@OTHERS
@pytest.mark.parametrize(
    "line",
    [
        "Scores follow likeness by -.03 (mean rank correlation given distance and length; random heads .00 ± .02, untrained .01); "
        "beyond chance likeness is read by 3 of 24 heads, its opposite by 0.",
        "Distances between tokens, seen through a head, correlate by .61 with those it reads (.62 as query, .57 as key, .64 as content; "
        "the same heads turned at random .71 ± .01): more deformed than by chance.",
        "21 kinds of tokens separate: 1 cluster at the embedding, 9 at the end, untrained 12; directions in use 14.2 → 11.1; too few "
        "kinds share a stem to ask for meaning.",
        "Untrained: the same text in this architecture at initial weights, drawn 3 times. A yes has beaten chance after correction for "
        "everything tested; a no means that an effect worth telling would be seen.",
        "12 numbers were held against chance; none beat its null.",
        "no · to the next token",
    ],
)
def test_sentences_within_sentences_are_known_too(language: str, line: str) -> None:
    told, left = Tongue(said_in(language)).best(line)
    assert left < 1, told


def test_a_token_stays_as_it_is() -> None:
    tongue = Tongue({"token {0} {1}": "词元 {0} {1!}", "key": "键"})
    assert tongue.tell("token 3 key") == "词元 3 key"
    assert tongue.tell("key") == "键"


def test_what_is_not_known_is_told_as_it_came() -> None:
    assert Tongue({"one": "一"}).tell("nobody knows this") == "nobody knows this"
    assert Tongue({"one": "一"}).tell("one; two") == "一；two"
