"""Tests of the picture of `scores`."""

from tests.pictures.cases import drawn, found


def test_parts_that_are_0_everywhere_have_no_map() -> None:
    titles = [panel.title for panel in drawn("scores").panels]
    assert "Centred tokens" in titles
    for field, title in (("query_bias", "Query bias"), ("key_bias", "Key bias")):
        assert (title in titles) == (float(abs(found("scores")[field]).max()) > 0)
