"""The card of a model: its numbers, its answers, its cache, its files, and what it refuses."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import rheoscope as rs
from rheoscope.catalogue import all_claims
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message
from rheoscope.picture.blocks import OpeningRows
from rheoscope.picture.picture import Cells, Line, Shape
from rheoscope.report import card as card_module
from rheoscope.report.card import answer_claims, card_dataset
from rheoscope.report.card_blocks import (
    answer_text,
    claim_table,
    claims_of,
    intervals_of,
    missing_notes,
    number_table,
    strip_of,
    summary_line,
)
from rheoscope.report.card_cache import find_card, measurement_key
from rheoscope.report.card_clouds import trace_batches
from rheoscope.report.card_facts import claim_notes, has_facts
from rheoscope.report.card_rows import card_blocks, opening_rows
from rheoscope.report.card_texts import passages, read_texts, texts_digest
from rheoscope.report.forest_plot import MAX_DRAWN, signed_number, strip_panel
from rheoscope.report.terminal import Terminal
from rheoscope.space.claim import Claim, ClaimSample, Measured
from rheoscope.statistics.claim_answers import Criterion, EffectInterval, claim_answer
from tests.covers.cases import random_model

TEXTS = [[(n * i * i + 3 * i) % 290 + 1 for i in range(16)] for n in range(5)]


def planted_measurement(effect: float, n_texts: int = 96, seed: int = 0) -> dict[str, Any]:
    """Measurements of all claims with the same effect, relative to the smallest effect of interest of each part."""
    generator = torch.Generator().manual_seed(seed)
    return {
        claim.name: {
            part.name: Measured(
                part.smallest_effect * (effect + torch.randn(n_texts, generator=generator)),
                draws=part.smallest_effect * 0.1 * torch.randn(40, n_texts, generator=generator),
            )
            for part in claim.parts
        }
        for claim in all_claims()
    }


def planted_card(effect: float) -> Any:
    facts = {"n_texts": 96, "draws": 40, "untrained": 8, "model": "a planted model"}
    return card_dataset(answer_claims(planted_measurement(effect), {}), {}, facts)


@pytest.mark.parametrize(("effect", "answer"), [(2.0, "yes"), (0.0, "no"), (-3.0, "reversed"), (1.0, "unclear")])
def test_planted_effects_have_their_answers(effect: float, answer: str) -> None:
    card = planted_card(effect)
    superiority = [claim.name for claim in all_claims() if not any(part.allows_loss for part in claim.parts)]
    answers = card.answer.sel(claim=superiority).values
    assert np.mean(answers == answer) >= 0.9


def test_every_claim_is_declared_once_with_its_reason() -> None:
    claims = all_claims()
    assert len({claim.name for claim in claims}) == len({claim.order for claim in claims}) == len(claims)
    for claim in claims:
        assert claim.reason, claim.name
        assert claim.null, claim.name
        assert claim.document in ("A", "C"), claim.name
        assert all(part.smallest_effect > 0 and part.statistic for part in claim.parts), claim.name


def test_a_card_has_the_numbers_of_its_claims() -> None:
    model = random_model(heads=2, width=16)
    card = rs.card(model, TEXTS, cache=False)
    batches = trace_batches(model, TEXTS)
    for claim in all_claims():
        if f"skipped {claim.name}" in card.attrs:
            continue
        row = card.sel(claim=claim.name)
        measured = claim.measure(ClaimSample(model, batches, 40))
        effects = [float(values.effects.double().nanmean()) for values in measured.values()]
        assert np.isclose(float(row.estimate), effects, atol=1e-9).any(), claim.name
        assert row.low <= row.estimate <= row.high
        for part in claim.parts:
            lowest, highest = part.bounds
            part_effects = measured[part.name].effects
            assert bool(
                ((part_effects >= lowest - 1e-9) & (part_effects <= highest + 1e-9) | part_effects.isnan()).all()
            )
            interval = card.sel(interval=claim.name if len(claim.parts) == 1 else f"{claim.name}.{part.name}")
            assert lowest <= interval.part_low <= interval.part_high <= highest
        facts = {} if claim.facts is None else claim.facts(ClaimSample(model, batches, 0))
        assert {name: card.attrs[f"{claim.name}.{name}"] for name in facts} == facts
    assert {"estimate", "low", "high", "threshold", "answer"} <= set(card)
    assert bool(card.part_untrained_mean.notnull().all())
    assert card.sizes["claim"] + sum(key.startswith("skipped") for key in card.attrs) == len(all_claims())


def test_a_finished_measurement_is_read_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, calls = random_model(heads=2, width=16), []

    def counted(claim: Claim) -> Claim:
        def measure(sample: ClaimSample) -> Any:
            calls.append(claim.name)
            return claim.measure(sample)

        return replace(claim, measure=measure)

    claims = tuple(counted(claim) for claim in all_claims() if claim.name in ("erasure", "symmetry"))
    monkeypatch.setattr(card_module, "all_claims", lambda: claims)
    first = rs.card(model, TEXTS)
    n_models = 1 + first.attrs["untrained"]
    assert sorted(calls) == ["erasure"] * n_models + ["symmetry"] * n_models
    assert rs.card(model, TEXTS).equals(first)
    assert len(calls) == 2 * n_models
    rs.card(model, TEXTS, seed=1)
    rs.card(model, TEXTS[:4])
    assert len(calls) == 6 * n_models


def test_other_words_are_another_measurement(tmp_path: Path) -> None:
    model = random_model()
    sample = ClaimSample(model, trace_batches(model, TEXTS), 40)
    (claim,) = (claim for claim in all_claims() if claim.name == "relatedness")
    other = tmp_path / "words.tsv"
    other.write_text("group\tword\n")
    keys = [measurement_key(replace(claim, word_file=file), sample, "1") for file in (claim.word_file, other, None)]
    assert len(set(keys)) == 3


def test_a_model_without_any_measurable_claim_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: ClaimSample) -> Any:
        raise rs.RheoscopeError("this model has no heads")

    claims = tuple(replace(claim, measure=refuse) for claim in all_claims()[:2])
    monkeypatch.setattr(card_module, "all_claims", lambda: claims)
    with pytest.raises(rs.RheoscopeError, match="no claim can be measured on this model: this model has no heads"):
        rs.card(random_model(), TEXTS, cache=False)


def test_few_texts_and_few_draws_are_refused() -> None:
    model = random_model()
    with pytest.raises(rs.RheoscopeError, match="at least 4 texts, got 3"):
        rs.card(model, TEXTS[:3])
    with pytest.raises(rs.RheoscopeError, match="draws must be at least 40, got 5"):
        rs.card(model, TEXTS, draws=5)
    with pytest.raises(rs.RheoscopeError, match="untrained must be at least 8, got 1"):
        rs.card(model, TEXTS, untrained=1)


def test_every_block_shows_every_claim() -> None:
    card = planted_card(1.0)
    statements = [str(claim.statement) for claim in all_claims()]
    assert [str(row[0].text) for row in claim_table(card).rows] == [claim.name for claim in all_claims()]
    assert [re.split(r"\. (?:About|More) ", str(row[-1].text))[0] for row in claim_table(card).rows] == statements
    assert len(number_table(card).rows) == card.sizes["interval"]
    assert [str(row.title) for row in opening_rows(card, None).rows] == statements
    assert str(summary_line(card)).startswith(f"{len(statements)} claims")
    assert len(card_blocks(card)) == 3


def test_a_row_opens_to_its_words_its_control_and_its_most_extreme_texts() -> None:
    card = find_card(rs.load().view)
    assert card is not None
    for claim, row in zip(all_claims(), opening_rows(card, passages()).rows, strict=True):
        assert len(row.details) == len(claim.parts)
        for part, detail in zip(claim.parts, row.details, strict=True):
            name = claim.name if len(claim.parts) == 1 else f"{claim.name}.{part.name}"
            facts = {str(title): str(value) for title, value in detail.facts.items()}
            assert facts["Statistic"].startswith(str(part.statistic))
            assert facts["Smallest effect"].endswith(str(claim.reason))
            assert facts["Null"] == str(claim.null)
            largest = signed_number(float(card.untrained_effect.sel(interval=name).max()))
            assert facts["Untrained control"].endswith(f"to {largest}")
            assert ("Strongest text" in facts) == (claim.unit == "texts")
    effects = card.effect.sel(interval="deformation").values
    facts = {str(name): str(value) for name, value in opening_rows(card, passages()).rows[1].details[0].facts.items()}
    for name, index in (("Strongest text", np.nanargmax(effects)), ("Weakest text", np.nanargmin(effects))):
        first_words = " ".join(passages()[index].split())[:20]
        assert facts[name].startswith(f"{effects[index]:.3f}".replace("0.", ".", 1))
        assert f"text {index}: “{first_words}" in facts[name]


def test_a_row_draws_every_text_every_random_model_and_the_smallest_effect() -> None:
    card = find_card(rs.load().view)
    assert card is not None
    for claim, row in zip(all_claims(), opening_rows(card, None).rows, strict=True):
        for part, detail in zip(claim.parts, row.details, strict=True):
            name = claim.name if len(claim.parts) == 1 else f"{claim.name}.{part.name}"
            dots = [mark for mark in detail.panel.marks if isinstance(mark, Line) and mark.style == "dots"]
            dot_values = [np.sort(np.asarray(mark.x)) for mark in dots]
            effects, random = (np.sort(card[field].sel(interval=name).dropna(field_axis).values) for field, field_axis in
                               (("effect", "unit"), ("random_effect", "draw")))  # fmt: skip
            assert any(np.array_equal(x, effects) for x in dot_values), name
            shift = 0 if claim.random_models == "untrained" else random.mean()
            assert any(len(x) == len(random) and np.allclose(x, random - shift) for x in dot_values), name
            dashed = [mark.x[0] for mark in detail.panel.marks if isinstance(mark, Line) and mark.style == "dashed"]
            assert dashed == [-part.smallest_effect, part.smallest_effect]


def test_only_the_passages_of_the_package_are_named() -> None:
    """A card over 96 other texts must not be taken for the card over the passages."""
    card = find_card(rs.load().view)
    assert card is not None
    assert card.attrs["texts"] == texts_digest(passages())
    other = card.assign_attrs(texts=texts_digest([f"text {n}" for n in range(96)]), weights="other")
    (rows, *_) = card_blocks(other)
    assert isinstance(rows, OpeningRows)
    facts = {str(name): str(value) for name, value in rows.rows[1].details[0].facts.items()}
    assert "“" not in facts["Strongest text"]
    assert not card_module._answers_request(other, rs.load(), 40, 8, 0)
    assert card_module._answers_request(card, rs.load(), 40, 8, 0)


def test_facts_of_the_model_are_shown_under_their_claim() -> None:
    card = planted_card(2.0)
    claim = next(claim for claim in all_claims() if claim.name == "next_token")
    assert not has_facts(card, claim)
    assert claim_notes(card, claim) == ()
    card = card.assign_attrs({"next_token.tied": 0.0, "next_token.accuracy": 0.3})
    (note,) = claim_notes(card, claim)
    assert note.startswith("With untied embeddings: ")
    assert note.endswith("30 % of next tokens predicted")
    assert any(str(row[-1].text).endswith(f". {note}") for row in claim_table(card).rows)
    assert note in card_blocks(card)[-1].lines


def test_a_card_without_facts_is_not_returned() -> None:
    stored = find_card(rs.load().view)
    assert stored is not None
    settings = (rs.load(), stored.attrs["draws"], stored.attrs["untrained"], stored.attrs["seed"])
    assert card_module._answers_request(stored, *settings)
    stored.attrs = {key: value for key, value in stored.attrs.items() if not key.startswith("next_token.")}
    assert not card_module._answers_request(stored, *settings)


def test_a_claim_with_a_value_for_one_text_only_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """One value has no spread, so its interval had no width and the claim an answer."""
    few = tuple(claim for claim in all_claims() if claim.name in ("symmetry", "directions"))
    monkeypatch.setattr(card_module, "all_claims", lambda: few)
    card = rs.card(random_model(heads=2, width=16), [TEXTS[0], *([5, 6] for _ in range(3))], cache=False)
    assert card.claim.values.tolist() == ["symmetry"]
    assert card.attrs["skipped directions"] == "1 of 4 inputs have a value, expected at least 2"


def test_a_text_that_is_too_short_for_a_claim_has_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have the values that they have without it. It cost the whole card the claim."""
    few = tuple(claim for claim in all_claims() if claim.name in ("similarity", "rest"))
    monkeypatch.setattr(card_module, "all_claims", lambda: few)
    model = random_model(heads=2, width=16)
    card = rs.card(model, [*TEXTS, [5, 6, 7, 8]], cache=False)
    values = card.effect.sel(interval="similarity").values
    assert np.isnan(values[-1])
    expected = rs.card(model, TEXTS, cache=False).effect.sel(interval="similarity").values
    np.testing.assert_allclose(values[:-1], expected, rtol=1e-5, atol=1e-7)
    notes = [render(note) for claim in claims_of(card) for note in missing_notes(card, claim)]
    assert notes == ["5 of 6 texts have a value"]
    assert "5 of 6 texts have a value" in render(claim_table(card).rows[0][-1].text)
    assert opening_rows(card, [str(number) for number in range(6)])


def test_texts_are_read_from_lines_json_lines_and_a_directory(tmp_path: Path) -> None:
    texts = ["one text", "another text"]
    (tmp_path / "lines.txt").write_text("one text\n\nanother text\n")
    (tmp_path / "objects.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "ids.jsonl").write_text('{"ids": [3, 1, 2]}\n')
    assert read_texts(tmp_path / "ids.jsonl") == [[3, 1, 2]]
    (tmp_path / "folder").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "folder" / f"{number}.txt").write_text(text)
    for name in ("lines.txt", "objects.jsonl", "folder"):
        assert read_texts(tmp_path / name) == texts
    (tmp_path / "wrong.jsonl").write_text("[1]\n")
    with pytest.raises(rs.RheoscopeError, match="expected"):
        read_texts(tmp_path / "wrong.jsonl")
    with pytest.raises(rs.RheoscopeError, match="there is no file"):
        read_texts(tmp_path / "missing.txt")
    (tmp_path / "folder" / "photo.png").write_bytes(b"\x89PNG")
    with pytest.raises(rs.RheoscopeError, match=r"photo\.png is not UTF-8 text"):
        read_texts(tmp_path / "folder")


@pytest.mark.parametrize("width", [60, 100, 110])
def test_a_strip_is_on_one_line_at_any_width(width: int) -> None:
    card = planted_card(2.0)
    console = Console(file=io.StringIO(), width=width, highlight=False)
    Terminal(console, []).print_block(claim_table(card))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for name in card.claim.values:
        assert strip_of(card.sel(claim=name)).draw().strip() in printed


def test_the_default_model_ships_with_its_card() -> None:
    """The card has every claim, names its command, and its answers follow from its numbers."""
    card = find_card(rs.load().view)
    assert card is not None
    assert card.claim.values.tolist() == [claim.name for claim in all_claims()]
    assert card.attrs["command"].startswith("rheoscope card --draws 100")
    assert card.attrs["n_texts"] == 96
    assert card.attrs["untrained"] >= 8
    for claim, part, name in intervals_of(card):
        row = card.sel(interval=name)
        numbers = [float(row[f"part_{field}"]) for field in ("estimate", "low", "high")]
        assert numbers[0] == pytest.approx(float(row.effect.mean()), abs=1e-6), name
        assert part.smallest_effect == float(row.part_smallest_effect), claim.name
        interval = EffectInterval(*numbers, int(row.part_n_units), 0.0, 0.0, 100, 0.003)
        criterion = Criterion(
            part.smallest_effect, float(row.part_random_mean), float(row.part_threshold), part.allows_loss
        )
        assert claim_answer(interval, criterion) == str(row.part_answer.values), name


def test_the_card_of_the_default_model_is_returned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        pytest.fail("the card was measured again")

    monkeypatch.setattr(card_module, "clouds_of", fail)
    card = rs.card(rs.load())
    assert card.attrs["draws"] == 100
    assert card.equals(rs.card(rs.load(), draws=100))


def test_another_model_has_no_card_until_one_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = random_model(heads=2, width=16)
    assert find_card(model.view) is None
    claims = tuple(claim for claim in all_claims() if claim.name in ("symmetry", "directions"))
    monkeypatch.setattr(card_module, "all_claims", lambda: claims)
    stored = rs.card(model, TEXTS)
    read = find_card(model.view)
    assert read is not None
    assert read.answer.values.tolist() == stored.answer.values.tolist()


def test_an_unclear_claim_says_how_many_texts_would_decide_it() -> None:
    card = find_card(rs.load().view)
    assert card is not None
    notes = {str(row[0].text): str(row[-1].text) for row in claim_table(card).rows}
    hopeless = ["relation", "gradient", "directions"]
    assert [name for name, note in notes.items() if note.endswith(". More texts cannot decide")] == hopeless
    (name,) = [name for name, note in notes.items() if note.endswith("would decide")]
    assert notes[name].endswith(f"optimal transport. About {int(card.texts_needed.sel(claim=name))} texts would decide")
    assert str(answer_text("unclear", 30.0, "groups")) == "unclear (30 groups)"


def test_large_effects_are_drawn_at_the_edge() -> None:
    strips = [row.strip for row in opening_rows(planted_card(40.0), None).rows]
    xs = [x for strip in strips for mark in strip.marks if not isinstance(mark, Cells) for x in np.atleast_1d(mark.x)]
    assert max(map(abs, xs)) == MAX_DRAWN


def test_random_models_beyond_the_edge_are_visible() -> None:
    row = planted_card(0.0).sel(claim="rest")
    far = row.assign(random_mean=-20 * row.smallest_effect, threshold=0.1 * row.smallest_effect)
    (band,) = [mark for mark in strip_panel(far, Message("")).marks if isinstance(mark, Shape)]
    assert -MAX_DRAWN == min(band.x) < max(band.x) < -MAX_DRAWN + 1
