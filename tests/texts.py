"""Random texts for hypothesis: all characters that UTF-8 can encode."""

from functools import partial

from hypothesis import strategies as st

WRITABLE = st.characters(exclude_categories=["Cs"])
"""Defined by the excluded surrogates: `codec="utf-8"`, the default, tries every character once per clone, for three seconds."""
any_text = partial(st.text, WRITABLE)
