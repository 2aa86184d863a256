"""The card of an encoder-decoder: claims for both sides, pairs of texts, and targets that the model writes itself."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.catalogue import all_claims
from rheoscope.report import card as card_module
from rheoscope.report.card import prepare_texts
from rheoscope.report.card_blocks import claim_table, pair_lines, skipped_lines
from rheoscope.report.card_cache import find_card
from rheoscope.report.card_clouds import CardCloud, claims_by_name, clouds_of, side_of
from rheoscope.report.card_measurements import measure_cloud
from rheoscope.report.card_rows import opening_rows
from rheoscope.report.card_texts import check_texts, for_model, read_texts, texts_digest
from rheoscope.report.text_pairs import TextPair, long_enough, text_pairs
from rheoscope.space.claim import ClaimSample
from tests.pretrained.cases import network, tokenizer
from tests.running.test_pair_sides import pair

GENERATOR = torch.Generator().manual_seed(0)
PAIRS = [
    (torch.randint(3, 40, (12 + n,), generator=GENERATOR), torch.randint(3, 40, (10 + n,), generator=GENERATOR))
    for n in range(4)
]
NEITHER = {"rest", "senses", "relatedness"}
"""Claims that a decoder cannot have."""


def few_claims(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    chosen = tuple(claim for claim in all_claims() if claim.name in names)
    monkeypatch.setattr(card_module, "all_claims", lambda: chosen)


@cache
def measured(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every claim of both sides with few draws, and the errors of those that cannot be measured."""
    values, errors = {}, {}
    for cloud in clouds_of(pair(name), text_pairs(pair(name), PAIRS)):
        side_values, side_errors = measure_cloud(cloud, cloud.traces(), cloud.claims(all_claims()), 2, 0, None, None)
        values, errors = values | side_values, errors | side_errors
    return values, errors


def test_every_claim_is_measured_or_refused_on_both_sides() -> None:
    values, errors = measured("t5")
    assert set(values) | set(errors) == {
        f"{side}.{claim.name}" for side in ("source", "target") for claim in all_claims()
    }
    assert {name for name in errors if name.startswith("target")} == {f"target.{name}" for name in NEITHER}
    assert {"source.similarity", "source.rest", "target.relation", "target.asymmetry", "target.next_token"} <= set(
        values
    )
    assert all("\n" not in str(error) for error in errors.values())


def test_each_side_has_the_numbers_of_its_own_model() -> None:
    values, _ = measured("t5")
    sources = tuple(rs.source_model(pair("t5")).trace([source]) for source, _ in PAIRS)
    (claim,) = (claim for claim in all_claims() if claim.name == "erasure")
    expected = claim.measure(ClaimSample(rs.source_model(pair("t5")), sources, 2))["erasure"]
    torch.testing.assert_close(values["source.erasure"]["erasure"].observed, expected.observed, rtol=1e-4, atol=1e-5)
    targets = [rs.target_model(pair("t5"), source).trace([target]) for source, target in PAIRS]
    expected = claim.measure(ClaimSample(rs.target_model(pair("t5"), PAIRS[0][0]), tuple(targets), 2))["erasure"]
    torch.testing.assert_close(values["target.erasure"]["erasure"].observed, expected.observed, rtol=1e-4, atol=1e-5)


def test_losses_of_targets_are_those_of_their_sources() -> None:
    """A slow twin: the loss of each target in its own pair, one at a time."""
    from rheoscope.covers.surgery.claims import text_losses

    (_, cloud) = clouds_of(pair("t5"), text_pairs(pair("t5"), PAIRS))
    losses = text_losses(cloud.sample(cloud.traces(), 2, 0), [])
    expected = []
    for source, target in PAIRS:
        logits = pair("t5").run((source, target))
        expected.append(torch.nn.functional.cross_entropy(logits[:-1], target[1:]).detach())
    torch.testing.assert_close(losses.float(), torch.stack(expected), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        few_claims(patch, "symmetry", "erasure", "asymmetry", "senses")
        yield rs.card(pair("translator"), PAIRS)


def test_the_card_of_a_pair(card: Any) -> None:
    names = ["source.symmetry", "source.erasure", "target.symmetry", "target.erasure", "target.asymmetry"]
    assert card.claim.values.tolist() == names
    assert card.part_untrained_mean.notnull().all()
    rows = [str(row[-1].text) for row in claim_table(card).rows]
    assert rows[1].startswith("Source: Later layers take back")
    assert rows[3].startswith("Target: Later layers take back")
    assert [str(line) for line in pair_lines(card)] == [
        "Source: the encoder reads a source. Target: the decoder reads a target, with its source."
    ]
    assert sum("not measured" in line for line in skipped_lines(card)) == 3
    assert not any("; type " in line for line in skipped_lines(card))
    assert len(opening_rows(card, PAIRS).rows) == 5
    assert set(rs.table(card)) >= {"claim", "interval"}
    assert rs.atlas([card]).claim.values.tolist()[0] == "source.similarity"


def test_a_story_finds_what_is_usual_on_its_side(card: Any) -> None:
    model = pair("translator")
    for side, text in ((rs.source_model(model), PAIRS[0][0]), (rs.target_model(model, PAIRS[0][0]), PAIRS[0][1])):
        assert find_card(side.view) is not None
        story = rs.story(side, side.trace(text)).sel(line="movement")
        row = card.story_number.sel(line=f"{side.view.facts['side']}.movement").values
        assert np.isclose(row[0], float(story.number), rtol=1e-3)
        assert story.percentile.notnull()


@pytest.mark.parametrize("name", ["t5", "translator"])
def test_greedy_outputs_are_the_most_likely_tokens(name: str) -> None:
    sources = [source for source, _ in PAIRS]
    for source, target in zip(sources, pair(name).greedy_targets(sources, 6), strict=True):
        expected = pair(name).run((source, target))[:-1].argmax(-1)
        assert len(target) <= 7
        assert torch.equal(target[1:], expected)


def test_a_source_without_a_target_has_the_greedy_output() -> None:
    items = [PAIRS[0], PAIRS[1][0], PAIRS[2], PAIRS[3][0]]
    pairs = text_pairs(pair("t5"), items)
    assert [item.is_generated for item in pairs] == [False, True, False, True]
    assert torch.equal(pairs[0].target, PAIRS[0][1])
    assert prepare_texts(pair("t5"), items)[1].is_generated
    assert text_pairs(pair("t5"), pairs) == pairs


def test_short_outputs_are_left_out_and_refused_if_most_are_short() -> None:
    short, long = TextPair("a", [0, 1], True), TextPair("a", [0, 1, 2, 3], True)
    assert long_enough([short, long, long]) == [long, long]
    assert long_enough([TextPair("a", [0, 1])]) != []
    with pytest.raises(rs.RheoscopeError, match="fewer than 4 tokens for 2 of 3 sources; give targets"):
        long_enough([short, short, long])


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("file", "line"),
    [("pairs.txt", "a house\tune maison"), ("pairs.jsonl", json.dumps({"source": "a house", "target": "une maison"}))],
)
def test_pairs_from_files(tmp_path: Path, file: str, line: str) -> None:
    texts = read_texts(write(tmp_path / file, [line]))
    assert for_model(pair("t5"), texts) == [("a house", "une maison")]


def test_a_model_of_one_text_refuses_pairs_in_one_line(decoder: Callable[[], Any]) -> None:
    with pytest.raises(rs.RheoscopeError, match="reads one text, but 4 of 4 texts are pairs of a source and a target"):
        check_texts(decoder(), [("a", "b")] * 4)
    assert for_model(decoder(), ["a\tb"]) == ["a\tb"]


@pytest.fixture
def decoder() -> Callable[[], Any]:
    return rs.load


def test_a_generated_target_does_not_change_the_name_of_the_texts() -> None:
    complete, generated = TextPair("a", "b"), TextPair("a", torch.tensor([1, 2]), True)
    assert texts_digest([generated]) == texts_digest(["a"]) != texts_digest([complete])


def test_rows_of_both_sides_have_names_of_their_own() -> None:
    names = claims_by_name()
    assert len(names) == 3 * len(all_claims())
    assert {side_of(claim) for claim in names.values()} == {"", "source", "target"}


def test_a_tokenizer_that_reads_no_english_has_no_claims_about_words() -> None:
    """Otherwise every English sentence would print that its characters are lost."""
    words = tokenizer()
    words.unk_token = "w3"
    other = rs.load(network("llama"), tokenizer=words)
    reasons = {claim.name: CardCloud(other, []).reason_without(claim) for claim in all_claims()}
    assert {name for name, reason in reasons.items() if reason is not None} == {"senses", "relatedness"}
    assert "the tokenizer loses 100 % of their characters" in str(reasons["senses"])
    assert all(CardCloud(rs.load(), []).reason_without(claim) is None for claim in all_claims())
