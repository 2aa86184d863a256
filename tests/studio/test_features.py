"""Tests of a studio with sparse features: scores of the first model as sums over features, where the dictionary describes them."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rheoscope.shapes import RheoscopeError
from rheoscope.studio.features import features_of
from rheoscope.studio.startup import StudioOptions, start_session
from rheoscope.studio.wire import unpack_envelope
from tests.covers.dictionaries import random_features
from tests.studio.cases import post_text, running_studio, small


def scores(client: TestClient, trace: str, layer: int) -> list[str]:
    """The names of the terms of a score, whose sum is checked."""
    body = {"layer": layer, "head": 1, "query": 5, "key": 2}
    attribution = client.post(f"/api/traces/{trace}/attribution", json=body).json()
    total = sum(term["contribution"] for term in attribution["components"])
    assert total + attribution["rest"] + attribution["position_bias"] == pytest.approx(attribution["score"], abs=1e-3)
    return [name for term in attribution["components"] for name in (term["from"], term["to"])]


def test_scores_are_sums_over_features_after_their_site() -> None:
    with running_studio() as (session, client):
        trace = post_text(client)
        assert "features.error" not in scores(client, trace, 1)
        session.features = random_features(small().view.width, "L0.resid_post", 24)
        assert "features.error" in scores(client, trace, 1)
        assert "features.error" not in scores(client, trace, 0)
        entry = session.get_entry(trace)
        assert features_of(session, entry, 99) is None
        session.features = random_features(8, "L0.resid_post", 24)
        assert features_of(session, entry) is None


def test_analyses_use_the_dictionary() -> None:
    with running_studio() as (session, client):
        session.features = random_features(small().view.width, "L0.resid_post", 24)
        trace = post_text(client)
        for name, settings in (("readout", {}), ("score_attribution", {"layer": 1, "head": 1})):
            header, arrays = unpack_envelope(
                client.get(f"/api/traces/{trace}/analyses/{name}", params=settings).content
            )
            assert "feature_share" in arrays
            assert header["attrs"]["features"].startswith("features: 24 features")


def test_a_missing_dictionary_is_refused_before_the_server_starts(tmp_path: Path) -> None:
    with pytest.raises(RheoscopeError, match="there is no dictionary"):
        start_session(StudioOptions(features=str(tmp_path / "none")))
