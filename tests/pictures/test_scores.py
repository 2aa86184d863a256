"""Tests of the picture of `scores`."""

from tests.pictures.cases import example_picture, example_result


def test_parts_that_are_0_everywhere_have_no_map() -> None:
    titles = [panel.title for panel in example_picture("scores").panels]
    assert "Centred tokens" in titles
    for field, title in (("query_bias", "Query bias"), ("key_bias", "Key bias")):
        assert (title in titles) == (float(abs(example_result("scores")[field]).max()) > 0)
