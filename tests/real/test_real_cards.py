"""A card runs on a real decoder, a real encoder and a real encoder–decoder, over few short texts and with the fewest random models."""

from typing import Any

import pytest

import rheoscope as rs
from rheoscope.catalogue import all_claims
from rheoscope.report import card as card_module
from rheoscope.report.card_clouds import claims_by_name
from rheoscope.statistics.claim_answers import MIN_DRAWS, MIN_SHARED_DRAWS, NO, REVERSED, UNCLEAR, YES
from tests.real.test_real_models import MODELS

pytestmark = pytest.mark.real_weights
SENTENCES = (
    "The keys to the cabinet are on the table.",
    "When Mary and John went to the store, John gave a drink to Mary.",
    "The river went to the sea, and the sea was deep.",
    "One day the king took the gold and put it in a ship.",
)
REACTIONS = (
    "CC(=O)O.OCC>>CC(=O)OCC.O",
    "CCO.CC(=O)Cl>>CC(=O)OCC.Cl",
    "c1ccccc1Br.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1",
    "CC(C)=O.NO>>CC(C)=NO.O",
)
PAIRS = (("The house is small.", "La maison est petite."), *SENTENCES[:3])
TEXTS: dict[str, Any] = {
    "stories260k": SENTENCES,
    "rxnmapper-albert": REACTIONS,
    "opus-mt-en-fr": PAIRS,
}
SLOW = {"senses", "relatedness"}
"""Claims over the word lists of the package, which take as long as all others."""


@pytest.mark.parametrize("name", TEXTS)
def test_a_card_runs_on_a_real_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (MODELS / name / "config.json").is_file():
        pytest.skip(f"{name} is not under {MODELS}")
    claims = tuple(claim for claim in all_claims() if claim.name not in SLOW)
    monkeypatch.setattr(card_module, "all_claims", lambda: claims)
    model = rs.load(MODELS / name)
    card = rs.card(model, list(TEXTS[name]), MIN_SHARED_DRAWS, MIN_DRAWS, cache=False)
    sides = ("source.", "target.") if hasattr(model, "encoder") else ("",)
    skipped = {str(key).removeprefix("skipped ") for key in card.attrs if str(key).startswith("skipped ")}
    measured = set(card.claim.values.tolist())
    assert measured | skipped == {f"{side}{claim.name}" for side in sides for claim in claims} <= set(claims_by_name())
    assert {f"{side}{claim}" for side in sides for claim in ("symmetry", "erasure")} <= measured
    assert set(card.answer.values.tolist()) <= {YES, NO, REVERSED, UNCLEAR}
    assert card.low.notnull().all()
    assert card.part_untrained_mean.notnull().all()
