"""An encoder-decoder in the studio: the cloud of the source, that of the target, and cross-attention between them."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

import rheoscope as rs
from rheoscope.models.config import Config
from rheoscope.models.sentence_pairs import SPECIALS, START
from rheoscope.models.transformer import Translator
from rheoscope.models.vocabulary import character_tokenizer
from rheoscope.report.story import STORY_LINES
from rheoscope.report.text_pairs import greedy_outputs
from rheoscope.shapes import RheoscopeError
from rheoscope.studio.session import Session
from rheoscope.studio.wire import unpack_envelope
from tests.pretrained.cases import gap
from tests.pretrained.test_feature_pair import loaded as speech_model
from tests.studio.cases import error_line, parse_events, post_text, running_studio

SOURCE, TARGET = "the bank of the river", "das ufer am fluss"


@cache
def translator() -> Any:
    torch.manual_seed(0)
    tokenizer = character_tokenizer(["abcdefghijklmnopqrstuvwxyz "], SPECIALS)
    sizes = {"vocabulary": 32, "width": 16, "depth": 2, "heads": 4, "context": 64}
    return rs.load(Translator(Config(form="encoder-decoder", **sizes)), tokenizer=tokenizer)


def load(source: str | None, **options: Any) -> Any:
    options["progress"](1, 1)
    return translator()


@pytest.fixture(scope="module")
def studio() -> Iterator[tuple[Session, TestClient]]:
    with running_studio(load) as (session, client):
        yield session, client


def header(client: TestClient, trace: str) -> Any:
    return client.get(f"/api/traces/{trace}").json()


def test_a_pair_has_a_cloud_of_its_source_and_one_of_its_target(studio: tuple[Session, TestClient]) -> None:
    session, client = studio
    source, target = (header(client, post_text(client, SOURCE, **more)) for more in ({}, {"target": TARGET}))
    linked = translator().trace((SOURCE, TARGET))
    for side, trace in ((source, linked.source), (target, linked.target)):
        assert [token["text"] for token in side["tokens"]] == trace.tokens
        assert side["steps"] == [str(step) for step in trace.steps]
        assert torch.equal(session.get_entry(side["id"]).trace.points, trace.points)
        assert side["pair"]["steps"] == {"source": len(linked.source.steps), "target": len(linked.target.steps)}
    assert (source["pair"]["side"], target["pair"]["side"]) == ("source", "target")
    assert target["pair"]["source"] == source["pair"]["source"] == [token["shown"] for token in source["tokens"]]
    assert (source["next"], bool(target["next"])) == (None, True)


def test_cross_attention_is_a_map_of_target_tokens_on_source_tokens(studio: tuple[Session, TestClient]) -> None:
    trace = post_text(studio[1], SOURCE, target=TARGET)
    weights = unpack_envelope(studio[1].get(f"/api/traces/{trace}/cross/1/2").content)[1]["map"].decoded_values
    expected = translator().trace((SOURCE, TARGET)).target.cross_weights(1, 2)
    assert gap(torch.from_numpy(weights), expected) <= 1 / 254
    refusal = studio[1].get(f"/api/traces/{post_text(studio[1], SOURCE)}/cross/1/2")
    assert "cross-attention" in error_line(refusal, 400)


def test_the_same_target_has_one_trace_per_source(studio: tuple[Session, TestClient]) -> None:
    client = studio[1]
    first, again, other = (post_text(client, text, target=TARGET) for text in (SOURCE, SOURCE, SOURCE[::-1]))
    assert first == again != other
    assert post_text(client, TARGET) != first


def test_the_story_of_a_target_says_what_it_reads_in_the_source(studio: tuple[Session, TestClient]) -> None:
    client = studio[1]
    names = {}
    for side, more in (("source", {}), ("target", {"target": TARGET})):
        response = client.post("/api/traces", json={"text": SOURCE, **more}).json()
        events = parse_events(client.get(f"/api/traces/{response['id']}/events").text)
        assert events[-1][0] == "done"
        names[side] = {line["name"] for line in client.get(f"/api/traces/{response['id']}/story").json()["story"]}
    catalogue = client.get("/api/catalogue").json()["story"]
    only_targets = {line["name"] for line in catalogue if line["reads_source"]}
    assert only_targets == {line.name for line in STORY_LINES if line.reads_source}
    assert names["target"] - names["source"] == only_targets


def test_results_of_the_weights_of_one_side_are_not_those_of_the_other(studio: tuple[Session, TestClient]) -> None:
    session, client = studio
    for more in ({}, {"target": TARGET}):
        trace = post_text(client, SOURCE, **more)
        assert client.get(f"/api/traces/{trace}/analyses/operators").status_code == 200
        entry = session.get_entry(trace)
        result = session.result_or_job(entry, "operators", {})
        expected = rs.operators(entry.model.view)
        assert result.symmetry.values.tolist() == expected.symmetry.values.tolist()  # type: ignore[union-attr]


def test_the_models_own_output_is_offered_as_a_target(studio: tuple[Session, TestClient]) -> None:
    target = studio[1].post("/api/targets", json={"text": SOURCE}).json()["target"]
    (output,) = greedy_outputs(translator(), [SOURCE])
    assert int(output[0]) == START
    assert target == "".join(translator().token_strings(output[1:])).strip()


def test_a_pair_that_reads_a_sound_is_refused() -> None:
    def load_speech(source: str | None, **options: Any) -> Any:
        return speech_model("whisper")

    with running_studio(load_speech) as (session, _):
        opened = session.open_model("default")
        with pytest.raises(RheoscopeError, match="the studio shows texts, but the source of default is a sound"):
            opened.job.result.result(timeout=300)


@pytest.mark.parametrize(("target", "problem"), [("", "the target is empty"), (" ", "the target is empty")])
def test_an_empty_target_is_refused(studio: tuple[Session, TestClient], target: str, problem: str) -> None:
    response = studio[1].post("/api/traces", json={"text": SOURCE, "target": target})
    assert problem in error_line(response, 400)


def test_a_target_for_a_decoder_is_refused() -> None:
    with running_studio() as (_, client):
        response = client.post("/api/traces", json={"text": "a text", "target": "another"})
        assert "has no encoder, so it reads one text" in error_line(response, 400)
        response = client.post("/api/targets", json={"text": "a text"})
        assert "has no encoder, so it has no target" in error_line(response, 400)


def test_edits_change_the_decoder_and_are_refused_in_the_encoder(studio: tuple[Session, TestClient]) -> None:
    client = studio[1]
    edits = [{"layer": 1, "head": 2, "part": "both", "operation": "ablate"}]
    edited, plain = (post_text(client, SOURCE, target=TARGET, edits=e) for e in (edits, []))
    assert client.get(f"/api/traces/{edited}/cost").json()["kl"] > 0
    assert header(client, plain)["edits"] == []
    response = client.post("/api/traces", json={"text": SOURCE, "edits": edits, "lines": []})
    assert "heads of an encoder cannot be edited yet" in error_line(response, 400)
