"""One name for the inflected forms of an English word, without a dictionary: a table of irregular forms, then Porter's rules."""

import re

IRREGULAR = {
    form: forms.split()[0]
    for forms in (
        "be am is are was were been being", "have has had", "do does did done doing", "go goes went gone going", "say said",
        "make made", "take took taken", "come came", "see saw seen", "know knew known", "get got gotten", "give gave given",
        "find found", "think thought", "tell told", "become became", "leave left", "feel felt", "bring brought",
        "begin began begun", "keep kept", "hold held", "write wrote written", "stand stood", "hear heard", "mean meant",
        "meet met", "run ran", "pay paid", "sit sat", "speak spoke spoken", "lie lying lain", "lead led", "grow grew grown",
        "lose lost", "fall fell fallen", "send sent", "build built", "understand understood", "draw drew drawn",
        "break broke broken", "spend spent", "rise rose risen", "drive drove driven", "buy bought", "wear wore worn",
        "choose chose chosen", "catch caught", "teach taught", "fight fought", "win won", "sell sold", "sing sang sung",
        "drink drank drunk", "eat ate eaten", "fly flew flown", "throw threw thrown", "die dying", "use used using",
        "man men", "woman women", "child children", "foot feet", "tooth teeth", "mouse mice", "person people", "wife wives",
        "wolf wolves", "half halves", "good better best", "bad worse worst", "can could", "will would", "shall should",
    )
    for form in forms.split()[1:]
}  # fmt: skip
VOWEL = re.compile(r"[aeiou]|(?<=.)y")


def stem(token: str) -> str:
    """A token without case, space and inflection, so that the forms of a word have one name; no word of a dictionary itself.

    **Formula** irregular forms by a table (`went` → `go`); then plurals, `-ed` and `-ing` where a vowel is left, a last `e`,
    doubled last consonants, and `i` for `y`. Words made of others (`-ly`, `-er`, `-ness`) keep their endings.

    **Limits** English; forms that are two words' (`saw`, `left`) are taken for the verb; pieces of words are stemmed as words.

    **Source** Porter 1980, An algorithm for suffix stripping, steps 1 and 5.

    >>> stem(" Tables"), stem("carried") == stem("carries") == stem("carry"), stem("running"), stem("water"), stem("went")
    ('tabl', True, 'run', 'water', 'go')
    """
    word = token.strip().casefold()
    word = IRREGULAR.get(word, word)
    word = _without_ed_or_ing(_singular(word))
    if len(word) > 3 and word.endswith("e") and not word.endswith("ee"):
        word = word[:-1]
    if len(word) > 3 and word[-1] == word[-2] and not VOWEL.match(word[-1]):
        word = word[:-1]
    return word[:-1] + "i" if len(word) > 2 and word.endswith("y") and word[-2] not in "aeiou" else word


def _singular(word: str) -> str:
    """Without the s of plurals and of the third person; `this`, `bus` and `glass` have none."""
    if word.endswith("ies"):
        return word[:-3] + "y" if len(word) > 4 else word[:-1]
    if len(word) < 4 or not word.endswith("s") or word.endswith(("us", "is")):
        return word
    return word if word.endswith("ss") else word[:-1]


def _without_ed_or_ing(word: str) -> str:
    """`walked` and `walking` are forms of a word with a vowel; `thing`, `red` and `need` are words."""
    if word.endswith("ied"):
        return word[:-3] + "y" if len(word) > 4 else word[:-1]
    if word.endswith("eed"):
        return word[:-1] if VOWEL.search(word[:-3]) else word
    for ending in ("ed", "ing"):
        left = word.removesuffix(ending)
        if left != word and len(left) >= 3 and VOWEL.search(left):
            return left
    return word
