"""The claim that the form M of a head is symmetric."""

import torch

from rheoscope.covers.operators.analysis import operators
from rheoscope.messages.message import Message
from rheoscope.space.claim import Claim, ClaimPart, ClaimSample, Measured


def measure(sample: ClaimSample) -> dict[str, Measured]:
    result = operators(sample.model.view, draws=sample.draws, seed=sample.seed)
    draws = torch.from_numpy(result.mean_symmetry_null_draws.values)
    return {"symmetry": Measured(torch.tensor([float(result.mean_symmetry)]), draws=draws[:, None])}


CLAIMS = (
    Claim(
        order=3,
        name="symmetry",
        statement=Message("M is more symmetric than a random form"),
        parts=(
            ClaimPart(
                "symmetry",
                Message("tr(MM)/tr(MMᵀ), mean over heads: 1 if symmetric, −1 if skew"),
                0.05,
                bounds=(-2.0, 2.0),
            ),
        ),
        reason=Message("at .05, the symmetric part of M has 52.5 % of its squared norm instead of 50 %"),
        null=Message("random M with the same singular values"),
        random_models="rotated",
        measure=measure,
        document="A",
        unit=Message("weights"),
    ),
)
