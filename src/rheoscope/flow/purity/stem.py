"""English word stems: a table of irregular forms and the Snowball stemmer."""

from functools import lru_cache

IRREGULAR_FORMS = {
    form: forms.split()[0]
    for forms in (
        "be am is are was were been", "have has had", "do does did done", "go goes went gone", "say said",
        "make made", "take took taken", "come came", "see saw seen", "know knew known", "get got gotten", "give gave given",
        "find found", "think thought", "tell told", "become became", "leave left", "feel felt", "bring brought",
        "begin began begun", "keep kept", "hold held", "write wrote written", "stand stood", "hear heard", "mean meant",
        "meet met", "run ran", "pay paid", "sit sat", "speak spoke spoken", "lie lain", "lead led", "grow grew grown",
        "lose lost", "fall fell fallen", "send sent", "build built", "understand understood", "draw drew drawn",
        "break broke broken", "spend spent", "rise rose risen", "drive drove driven", "buy bought", "wear wore worn",
        "choose chose chosen", "catch caught", "teach taught", "fight fought", "win won", "sell sold", "sing sang sung",
        "drink drank drunk", "eat ate eaten", "fly flew flown", "throw threw thrown",
        "man men", "woman women", "child children", "foot feet", "tooth teeth", "mouse mice", "person people", "wife wives",
        "wolf wolves", "half halves", "good better best", "bad worse worst", "can could", "will would", "shall should",
    )
    for form in forms.split()[1:]
}  # fmt: skip
"""Irregular form → base form."""


@lru_cache(maxsize=2**14)
def stem(token: str) -> str:
    """A token without case, space and inflection, so that all forms of a word have the same stem. The stem need not be a word.

    **Formula** A table maps irregular forms (`went` → `go`). Snowball's English stemmer then removes plurals, `'s`, `-ed`, `-ing` and
    suffixes such as `-ness` and `-ation`.

    The stemmer handles English only. Ambiguous forms (`saw`, `left`) count as the verb. Parts of words are stemmed like words.

    **Source** Porter 2001, Snowball (the package snowballstemmer).

    >>> stem(" Tables"), stem("carried") == stem("carries") == stem("carry"), stem("running"), stem("water"), stem("went")
    ('tabl', True, 'run', 'water', 'go')
    """
    from snowballstemmer.english_stemmer import EnglishStemmer

    normalised = token.strip().casefold()
    stemmer = EnglishStemmer()  # it has mutable state, so every call needs its own
    return stemmer.stemWord(IRREGULAR_FORMS.get(normalised, normalised))
