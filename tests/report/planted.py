"""Results with planted numbers, with an effect or without one."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

import rheoscope as rs
from rheoscope.report.analysis_runs import Subject, empty_results
from rheoscope.space.results import Results

DRAWS = 20
LAYERS, HEADS, POINTS = 6, 4, 7


def results(datasets: dict[str, xr.Dataset], controls: Sequence[dict[str, xr.Dataset]] = ()) -> Results:
    """Planted Datasets as the Results of a run on the default model."""
    model = rs.load()
    text = "a b c d e f g h i j k l"
    empty = empty_results(Subject(model, text, model.trace(text)), draw_nulls=True)
    return replace(empty, datasets=datasets, controls=tuple(replace(empty, datasets=control) for control in controls))


def null_samples(seed: int, centre: float = 0.0, spread: float = 0.02, draws: int = DRAWS) -> np.ndarray:
    return centre + spread * np.random.default_rng(seed).normal(size=draws)


def agreement(mean: float, seed: int = 0) -> xr.Dataset:
    heads = (LAYERS, HEADS)
    values = mean + null_samples(seed, draws=LAYERS * HEADS).reshape(heads)
    data = {
        "agreement": (("layer", "head"), values),
        "null_mean": (("layer", "head"), np.zeros(heads)),
        "q_value": (("layer", "head"), np.where(abs(values) > 0.1, 0.01, 0.8)),
        "position_baseline": (("layer", "head"), values + 0.1 * np.random.default_rng(seed + 1).normal(size=heads)),
        "mean_agreement": mean,
        "mean_agreement_null_draws": ("draw", null_samples(seed)),
    }
    return xr.Dataset(data)


def distortion(mean: float, seed: int = 0) -> xr.Dataset:
    data = {
        "mean_rsa": ("image", [mean] * 3),
        "mean_rsa_null_draws": (("draw", "image"), null_samples(seed, 0.6, draws=3 * DRAWS).reshape(DRAWS, 3)),
        "mean_mismatch": mean,
        "mean_mismatch_null": 0.6,
        "mean_mismatch_null_sd": 0.01,
    }
    return xr.Dataset(data, {"image": ["query", "key", "content"]})


def energy(mean: float) -> xr.Dataset:
    heads = np.full((LAYERS, HEADS), mean)
    data = dict.fromkeys(("cosine", "gradient_like"), (("layer", "head"), heads))
    return xr.Dataset(data | {"cosine_null_sd": (("layer", "head"), np.full_like(heads, 0.05))})


def transport(stays: float, goes: float, kappa: float = 0.5, seed: int = 0) -> xr.Dataset:
    strided = {
        name: (("stride", "step"), np.full((2, LAYERS), value))
        for name, value in (
            ("identity_share_strided", stays),
            ("identity_share_null_strided", 0.03),
            ("kappa_strided", kappa),
        )
    }
    data = strided | {
        "kappa_null_draws": ("draw", null_samples(seed, 0.5)),
        "next_type_share": goes,
        "next_type_share_null_draws": ("draw", null_samples(seed, 0.03, 0.01)),
        "toward_own": ("point", np.linspace(1, 0, POINTS)),
        "toward_next": ("point", np.linspace(0, 0.2, POINTS)),
    }
    return xr.Dataset(data)


def clusters(last: float, count: int = 50) -> xr.Dataset:
    data = {
        "type_effective_rank": ("point", np.linspace(30.0, last, POINTS)),
        "type_count": 53,
        "type_cluster_count": ("point", np.linspace(52, count, POINTS).round()),
    }
    return xr.Dataset(data)


def purity(p: float, pairs: int = 9, before: float = 0.5) -> xr.Dataset:
    values = {"purity": 0.9, "purity_null": 0.5, "purity_null_sd": 0.01, "p_value": p}
    data = {name: (("point", "by"), np.full((POINTS, 1), value)) for name, value in values.items()}
    data["purity"][1][0] = before
    return xr.Dataset(data | {"same_label_pairs": ("by", [pairs])}, {"by": ["stem"]})


def fixed_point(radius: float, error: float = 0.01) -> xr.Dataset:
    values = {
        "jacobian_radius": radius,
        "jacobian_radius_error": error,
        "rotation_angle": 0.3,
        "rotation_angle_null": 0.4,
    }
    return xr.Dataset(
        {name: ("layer", np.full(LAYERS, value)) for name, value in values.items()}, {"layer": range(LAYERS)}
    )


def readout(mean: float, seed: int = 0) -> xr.Dataset:
    data = {
        "log_probability_next": ("earlier_token", [mean, mean]),
        "log_probability_next_null_draws": ("draw", null_samples(seed, -8.0, 0.1)),
        "rank": ("point", [900, 50, 3, 1, 1, 1, 1]),
        "probability": ("point", np.linspace(0, 0.4, POINTS)),
        "attribution": ("component", [1.0, 5.0]),
        "logit": 9.0,
        "logit_above_mean": 6.0,
    }
    coords = {"point": ["embed", *(f"L{layer}.resid_post" for layer in range(LAYERS))], "component": ["embed", "L3.H1"]}
    return xr.Dataset(data, coords, {"target": 5, "token": 2})


def operators(name: str, mean: float, seed: int = 0) -> xr.Dataset:
    heads = mean + null_samples(seed, draws=LAYERS * HEADS).reshape(LAYERS, HEADS)
    return xr.Dataset({name: (("layer", "head"), heads), f"mean_{name}_null_draws": ("draw", null_samples(seed))})
