"""The picture of what scores are made of."""

from tests.pictures.cases import drawn, found


def test_a_share_of_scores_beyond_the_scale_and_unused_parts() -> None:
    titles = [panel.title for panel in drawn("scores").panels]
    assert "The form on the cloud" in titles
    used = {name for name in ("query_bias", "key_bias") if float(abs(found("scores")[name]).max()) > 0}
    assert ("Bias of queries" in titles) == ("query_bias" in used)
