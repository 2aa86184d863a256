"""Numbers of a model that qualify the answers of its card, and the notes that report them under a claim."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.report.card_clouds import interval_name
from rheoscope.space.claim import Claim, ClaimSample

if TYPE_CHECKING:
    import xarray


def model_facts(claims: Sequence[Claim], sample: ClaimSample) -> dict[str, float]:
    """The facts of all claims, named claim.fact, as a card stores them."""
    return {
        f"{claim.name}.{name}": value
        for claim in claims
        if claim.facts is not None
        for name, value in claim.facts(sample).items()
    }


def facts_of(card: "xarray.Dataset", claim: Claim) -> dict[str, float]:
    """The facts of a claim that a card stores, by name."""
    prefix = f"{claim.name}."
    return {str(key).removeprefix(prefix): value for key, value in card.attrs.items() if str(key).startswith(prefix)}


def has_facts(card: "xarray.Dataset", claim: Claim) -> bool:
    """Whether a stored card has the facts of a claim. A card of an earlier version may lack them."""
    return claim.facts is None or bool(facts_of(card, claim))


def claim_notes(card: "xarray.Dataset", claim: Claim) -> tuple[Message, ...]:
    """The sentences under a claim, from its facts and the mean statistic of its parts."""
    if not has_facts(card, claim):
        return ()
    observed = {
        part.name: float(card.part_observed.sel(interval=interval_name(claim, part)))
        for part in claim.parts
        if interval_name(claim, part) in card.interval.values
    }
    return claim.notes(observed | facts_of(card, claim))
