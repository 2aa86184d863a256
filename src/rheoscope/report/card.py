"""The card of a model: every claim with its effect, its interval, what random models reach, and the answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rheoscope.catalogue import all_claims
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.report.card_cache import cache_folder, find_card, store_card
from rheoscope.report.card_clouds import claims_by_name, clouds_of, interval_name, side_of
from rheoscope.report.card_controls import Controls, control_task, process_count, start_controls
from rheoscope.report.card_facts import has_facts, model_facts
from rheoscope.report.card_measurements import Measurements, OnTask, measure_cloud, reason_without_interval
from rheoscope.report.card_media import features_of, media_advice, media_unit
from rheoscope.report.card_texts import check_number, check_texts, passages, texts_digest, texts_of_card
from rheoscope.report.story_numbers import story_numbers
from rheoscope.report.text_pairs import TextPair, long_enough, text_pairs
from rheoscope.running.encoder_decoder import EncoderDecoder
from rheoscope.running.pair_sides import one_text_model
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.claim import Claim, ClaimPart, Measured
from rheoscope.space.model import Text
from rheoscope.space.settings import Count, Seed
from rheoscope.statistics.claim_answers import (
    CARD_LEVEL,
    MIN_DRAWS,
    MIN_SHARED_DRAWS,
    UNCLEAR,
    Criterion,
    EffectInterval,
    Evidence,
    claim_answer,
    effect_interval,
    joint_answer,
    random_limits,
    texts_needed,
)

if TYPE_CHECKING:
    import xarray

SKIPPED = "skipped "
"""The beginning of the attribute that says why a claim was not measured."""
NO_EFFECT = torch.zeros(MIN_DRAWS, dtype=torch.float64)
"""Stands for untrained models where none were measured."""


@dataclass(frozen=True, eq=False)
class PartAnswer:
    """One interval of a card: what was measured, and what follows from it."""

    claim: Claim
    part: ClaimPart
    measured: Measured
    evidence: Evidence
    interval: EffectInterval
    criterion: Criterion
    untrained_effects: Tensor

    @property
    def name(self) -> str:
        """The name of the interval."""
        return interval_name(self.claim, self.part)

    @property
    def answer(self) -> str:
        return claim_answer(self.interval, self.criterion)

    @property
    def texts_needed(self) -> int | None:
        return texts_needed(self.interval, self.criterion) if self.answer == UNCLEAR else None


@torch.no_grad()
def card(
    model: RunnableModel,
    texts: Sequence[Any] | None = None,
    draws: Count = MIN_SHARED_DRAWS,
    untrained: Count = MIN_DRAWS,
    seed: Seed = 0,
    cache: bool = True,
    progress: OnTask | None = None,
) -> "xarray.Dataset":
    """The claims of the seed documents about one model, each with an effect, an interval and an answer.

    **Question** What holds for this model over many texts, and not only for one of them?

    **Formula** For text t the effect e_t is the observed statistic minus its reference. `estimate` is the mean over texts, and `low`
    and `high` are the ends of its interval by Student's t, or by the bootstrap-t for claims whose effects are skewed. All m
    intervals of a card cover together with probability .95, so each has the level 1 − .05/m. The error of null draws that all
    texts share is part of the interval. An interval ends where its effect does, such as −1 and 1 for a difference of shares.

    **Answers** yes: `low` > `smallest_effect`, and `estimate` − `random_mean` > `threshold`. reversed: the same with the opposite
    sign. no: the interval lies within ± `smallest_effect`. unclear: anything else; `texts_needed` is the number of texts that
    would decide, NaN if more texts cannot. `threshold` bounds how far random models lie from their mean anywhere on the card,
    with probability .95: models with rotated or edited operators, or untrained models of the same architecture.

    **Settings** `texts` are at least 4 texts or lists of token ids; by default the 96 passages of the package. `draws` is the
    number of rotated or edited models, at least 40. `untrained` is the number of untrained models, at least 8. Measurements
    are stored in the user's cache directory unless `cache` is False, so an interrupted card resumes. A stored card over the
    passages with at least as many random models is returned at once; the card of the default model comes with the package.

    **Images and sounds** take the place of texts in a model that reads them: files, or tensors of features. Claims about words and
    predictions are skipped.

    **Encoder–decoders** have every claim twice, named `source.…` for the encoder and `target.…` for the decoder. Their texts are
    pairs (source, target). The target of a source without one is the model's own greedy output; `generated` counts these.

    **Returns** (claim): `estimate`, `low`, `high`, `smallest_effect`, `random_mean`, `threshold`, `untrained_mean`, `observed`,
    `answer`, `texts_needed`, `n_units`. A claim in two parts shows the part that decides. (interval): the same for every part,
    as `part_…`. (interval, unit): `value`, the statistic itself, and `effect`. (interval, draw): `random_effect`. (interval,
    control): `untrained_effect`, the same effect in every untrained model. (line, text): `story_number`, the number of every line of
    the story, from which `rs.story` takes percentiles.

    **See also** `rs.atlas` puts cards side by side.

    >>> import rheoscope as rs
    >>> card = rs.card(rs.load())  # comes with the package; another model takes minutes
    >>> str(card.answer.sel(claim="deformation").values)
    'yes'
    """
    _check_settings(draws, untrained)
    stored = find_card(model.view) if texts is None and cache else None
    if stored is not None and _answers_request(stored, model, draws, untrained, seed):
        return stored
    texts = prepare_texts(model, default_texts(model) if texts is None else texts, progress)
    folder, clouds = cache_folder() if cache else None, clouds_of(model, texts)
    batches = [cloud.traces() for cloud in clouds]
    measured: Measurements = {}
    reasons: dict[str, RheoscopeError] = {}
    controls = Controls(model, clouds, all_claims(), untrained, seed, folder, progress)
    task, n_processes = control_task(model, texts, seed, folder), process_count(model, untrained)
    with start_controls(task, untrained, n_processes) as started:
        for cloud, traces in zip(clouds, batches, strict=True):
            values, errors = measure_cloud(cloud, traces, cloud.claims(all_claims()), draws, seed, folder, progress)
            missing = {name: error for name, x in values.items() if (error := reason_without_interval(x)) is not None}
            measured |= {name: x for name, x in values.items() if name not in missing}
            reasons |= errors | missing
        if not measured:
            reason = next(iter(reasons.values()))
            raise RheoscopeError(
                Message("no claim can be measured on this model: {reason}", reason=reason.message), reason.advice
            )
        control_means = controls.mean_effects(measured, started)
    facts: dict[str, Any] = {
        "n_texts": len(texts),
        "texts": texts_digest(texts),
        "draws": draws,
        "untrained": untrained,
        "seed": seed,
    }
    for cloud, traces in zip(clouds, batches, strict=True):
        own_claims = [claim for claim in cloud.claims(all_claims()) if claim.name in measured]
        facts |= model_facts(own_claims, cloud.sample(traces, draws, seed))
    on_progress = None if progress is None else progress(Message("what is usual over these texts"))
    answers = answer_claims(measured, control_means)
    result = card_dataset(answers, reasons, facts | pair_facts(texts) | _provenance(model)).assign(
        story_number=story_numbers(clouds, batches, on_progress)
    )
    if cache:
        store_card(result)
    return result


def _answers_request(stored: "xarray.Dataset", model: RunnableModel, draws: int, untrained: int, seed: int) -> bool:
    """Whether a stored card has all claims, with at least these numbers of random models.

    It is about the passages, or about any images or sounds, of which the package has none.
    """
    return (
        stored.attrs["draws"] >= draws
        and stored.attrs["untrained"] >= untrained
        and stored.attrs["seed"] == seed
        and (texts_of_card(stored) is not None or not model.view.reads_tokens)
        and _has_all_claims(stored, isinstance(model, EncoderDecoder))
        and "story_number" in stored
    )


def _has_all_claims(stored: "xarray.Dataset", is_pair: bool) -> bool:
    """Whether a stored card has every claim of this version, answered or refused, with its facts."""
    names = [str(name) for name in stored.claim.values]
    all_names = [*names, *(str(key).removeprefix(SKIPPED) for key in stored.attrs if str(key).startswith(SKIPPED))]
    claims = [claim for name, claim in claims_by_name().items() if bool(side_of(claim)) == is_pair]
    if sorted(all_names) != sorted(claim.name for claim in claims):
        return False
    return all(has_facts(stored, claim) for claim in claims if claim.name in names)


def default_texts(model: RunnableModel) -> Sequence[str]:
    """The passages of the package. Raises for a model that reads images or sounds."""
    source = one_text_model(model)
    if source.view.reads_tokens:
        return passages()
    raise RheoscopeError(
        Message(
            "{model} reads {unit}, not texts, so its card needs some",
            model=model.view.name,
            unit=media_unit(source.view.facts),
        ),
        media_advice(source.view.facts),
    )


def prepare_texts(model: RunnableModel, texts: Sequence[Any], progress: OnTask | None = None) -> list[Any]:
    """The texts of a card, checked. Those of an encoder-decoder are pairs, some with targets that the model generates."""
    if not model.view.reads_tokens:
        return features_of(model, texts)
    if not isinstance(model, EncoderDecoder):
        check_texts(model, texts)
        return list(texts)
    check_number(texts)
    on_progress = None if progress is None else progress(Message("targets, the model's own greedy output"))
    pairs = long_enough(text_pairs(model, texts, on_progress))
    for side in clouds_of(model, pairs):
        check_texts(side.model, side.texts)
    return pairs


def pair_facts(texts: Sequence[Text | TextPair]) -> dict[str, int]:
    """The number of pairs whose target is the model's own greedy output. Nothing for texts that are no pairs."""
    pairs = [text for text in texts if isinstance(text, TextPair)]
    return {"generated": sum(pair.is_generated for pair in pairs)} if pairs else {}


def _check_settings(draws: int, untrained: int) -> None:
    for name, value, low in (("draws", draws, MIN_SHARED_DRAWS), ("untrained", untrained, MIN_DRAWS)):
        if value < low:
            raise RheoscopeError(
                Message("{name} must be at least {low}, got {value}", name=name, low=low, value=value),
                use(**{name: low}),
            )


def _provenance(model: RunnableModel) -> dict[str, str]:
    return {name: str(value) for name, value in model.view.facts.items()}


def answer_claims(
    measured: Mapping[str, Mapping[str, Measured]], control_means: Mapping[tuple[str, str], Tensor]
) -> list[PartAnswer]:
    """The answer of every part of every measured claim, with intervals that cover together."""
    rows = [
        (claim, part, measured[name][part.name])
        for name, claim in claims_by_name().items()
        if name in measured
        for part in claim.parts
    ]
    evidence = [_evidence(claim, part, values, control_means) for claim, part, values in rows]
    limits = random_limits(evidence)
    return [
        PartAnswer(
            claim,
            part,
            values,
            item,
            effect_interval(item, CARD_LEVEL / len(rows)),
            Criterion(part.smallest_effect, item.random_mean, limit, part.allows_loss),
            control_means.get((claim.name, part.name), NO_EFFECT),
        )
        for (claim, part, values), item, limit in zip(rows, evidence, limits, strict=True)
    ]


def _evidence(
    claim: Claim, part: ClaimPart, measured: Measured, control_means: Mapping[tuple[str, str], Tensor]
) -> Evidence:
    if measured.draw_means is not None:
        return Evidence(measured.effects, measured.draw_means, True, part.is_skewed, part.bounds)
    controls = control_means.get((claim.name, part.name), NO_EFFECT)
    return Evidence(measured.effects, controls, False, part.is_skewed, part.bounds)


def deciding_part(parts: Sequence[PartAnswer]) -> PartAnswer:
    """The part that a claim in several parts shows: the last one whose answer is that of the claim.

    Without such a part (both are clear, with opposite signs), the first.
    """
    answer = joint_answer([part.answer for part in parts])
    return next((part for part in reversed(parts) if part.answer == answer), parts[0])


def card_dataset(
    answers: Sequence[PartAnswer], errors: Mapping[str, RheoscopeError], facts: Mapping[str, Any]
) -> "xarray.Dataset":
    """The card as a Dataset."""
    import numpy as np
    import xarray as xr

    by_claim: dict[str, list[PartAnswer]] = {}
    for answer in answers:
        by_claim.setdefault(answer.claim.name, []).append(answer)
    shown = {name: deciding_part(parts) for name, parts in by_claim.items()}
    fields: dict[str, Any] = {
        name: ("claim", values) for name, values in part_numbers(list(shown.values())).items()
    } | {
        "answer": ("claim", [joint_answer([part.answer for part in parts]) for parts in by_claim.values()]),
        "statement": ("claim", [str(part.claim.statement) for part in shown.values()]),
    }
    fields |= {f"part_{name}": ("interval", values) for name, values in part_numbers(answers).items()}
    fields["part_answer"] = ("interval", [answer.answer for answer in answers])
    n_units = max(len(answer.measured.observed) for answer in answers)
    n_draws = max(len(answer.evidence.draw_means) for answer in answers)
    fields["value"] = (("interval", "unit"), np.stack([_padded(a.measured.observed, n_units) for a in answers]))
    fields["effect"] = (("interval", "unit"), np.stack([_padded(a.evidence.effects, n_units) for a in answers]))
    fields["random_effect"] = (
        ("interval", "draw"),
        np.stack([_padded(a.evidence.draw_means, n_draws) for a in answers]),
    )
    fields["untrained_effect"] = (("interval", "control"), np.stack([a.untrained_effects.numpy() for a in answers]))
    coords = {
        "claim": list(by_claim),
        "interval": [answer.name for answer in answers],
    }
    skipped = {f"{SKIPPED}{name}": str(error.message) for name, error in errors.items()}  # advice names other models
    return xr.Dataset(fields, coords, attrs={"analysis": "card", "n_intervals": len(answers), **facts, **skipped})


def part_numbers(answers: Sequence[PartAnswer]) -> dict[str, list[float]]:
    """The numbers of some parts, by field."""
    return {
        "estimate": [answer.interval.estimate for answer in answers],
        "low": [answer.interval.low for answer in answers],
        "high": [answer.interval.high for answer in answers],
        "smallest_effect": [answer.part.smallest_effect for answer in answers],
        "random_mean": [answer.criterion.random_mean for answer in answers],
        "threshold": [answer.criterion.random_limit for answer in answers],
        "untrained_mean": [float(answer.untrained_effects.mean()) for answer in answers],
        "observed": [float(answer.measured.observed.double().nanmean()) for answer in answers],
        "texts_needed": [float(answer.texts_needed or "nan") for answer in answers],
        "n_units": [answer.interval.n_texts for answer in answers],
    }


def _padded(x: Tensor, length: int) -> Any:
    return torch.nn.functional.pad(x.double().cpu(), (0, length - len(x)), value=torch.nan).numpy()
