"""Results with planted numbers, with an effect or without one."""

from dataclasses import replace

import numpy as np
import xarray as xr

import rheoscope as rs
from rheoscope.report.analysis_runs import Subject, empty_results
from rheoscope.space.results import Results

DRAWS = 20
LAYERS, HEADS, POINTS = 6, 4, 7


def results(datasets: dict[str, xr.Dataset]) -> Results:
    """Planted Datasets as the Results of a run on the default model."""
    model = rs.load()
    text = "a b c d e f g h i j k l"
    empty = empty_results(Subject(model, text, model.trace(text)), draw_nulls=True)
    return replace(empty, datasets=datasets)


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
    return xr.Dataset(data, attrs={"tied_embedding": 1})


def operators(name: str, mean: float, seed: int = 0) -> xr.Dataset:
    heads = mean + null_samples(seed, draws=LAYERS * HEADS).reshape(LAYERS, HEADS)
    return xr.Dataset({name: (("layer", "head"), heads), f"mean_{name}_null_draws": ("draw", null_samples(seed))})
