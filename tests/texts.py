"""Texts that hypothesis draws: of all characters that UTF-8 can write."""

from functools import partial

from hypothesis import strategies as st

WRITABLE = st.characters(exclude_categories=["Cs"])
"""Told by what they leave out, the surrogates: `codec="utf-8"`, the default, tries each character once a clone, for three seconds."""
any_text = partial(st.text, WRITABLE)
