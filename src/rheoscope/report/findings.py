"""What a text shows, in plain words: each sentence has beaten its null after correction, with the count of those that tried.

A candidate is a function of the Datasets of a run to one statement with its number and its null, or to nothing where the
analysis was not run. Adding one is a function and a line in `CANDIDATES` (the flow) or `COVERS`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from rheoscope.space.chance import q_values

if TYPE_CHECKING:
    import xarray

LEVEL = 0.05
"""The share of false ones that is expected among what is found (Benjamini and Hochberg 1995)."""
MOST = 5

Datasets = Mapping[str, "xarray.Dataset"]
Candidate = Callable[[Datasets], list["Finding"]]


@dataclass(frozen=True)
class Finding:
    """One statement: what was measured (`value`), what its null gives (`null` ± `spread`), how far apart (`z`), how sure (`q`).

    `tries` counts the places it was looked for in; the best of them is told, and pays for all. Of one analysis, one statement
    is told `about` each thing.
    """

    text: str
    analysis: str
    value: float
    null: float
    spread: float
    z: float
    tries: int = 1
    q: float = float("nan")
    about: str = ""


def findings(
    found: Datasets, most: int = MOST, candidates: Sequence[Candidate] | None = None
) -> tuple[list[Finding], int]:
    """At most `most` statements that beat their null, the surest first, one an analysis; and how many were tested.

    **Answers** "what is worth saying of this text in this model?" from the Datasets of a run by their analyses' names.

    **Formula** z is the distance from the null in its standard deviations, made normal where the null has few draws
    (as rare as Student's t); p is two-sided, times the places a candidate was looked for in; q is p corrected for all candidates
    (Benjamini and Hochberg); q ≤ .05 is told.

    **Takes** `candidates`: those of the flow, or `COVERS`; each family is corrected for its own.

    **Laws** nothing that fails its null is told; more candidates never make one surer.

    >>> import rheoscope as rs
    >>> trace = rs.load().trace("The keys to the cabinet are on the table")
    >>> told, tested = findings({"geometry_kept": rs.geometry_kept(trace), "transport": rs.transport(trace)})
    >>> len(told) <= tested
    True
    """
    asked = CANDIDATES if candidates is None else candidates
    tested = [one for candidate in asked for one in candidate(found) if math.isfinite(one.z)]
    surest = sorted(corrected(tested), key=lambda one: -abs(one.z))
    told: dict[tuple[str, str], Finding] = {}
    for one in surest:
        if one.q <= LEVEL:
            told.setdefault((one.analysis, one.about), one)
    return list(told.values())[:most], sum(one.tries for one in tested)


def as_dataset(told: Sequence[Finding], tested: int) -> "xarray.Dataset":
    """Findings as a Dataset (finding): for JSON and for programs; `attrs["tested"]` counts the candidates.

    >>> as_dataset([Finding("a", "b", 1.0, 0.0, 0.5, 2.0)], 7).attrs["tested"]
    7
    """
    import xarray as xr

    names = ("text", "analysis", "value", "null", "spread", "z", "q", "tries")
    data = {name: ("finding", [getattr(one, name) for one in told]) for name in names}
    return xr.Dataset(data, attrs={"analysis": "findings", "tested": tested, "level": LEVEL})


def corrected(tested: Sequence[Finding]) -> list[Finding]:
    """The same with q-values (Benjamini and Hochberg)."""
    chance = [min(1.0, math.erfc(abs(one.z) / math.sqrt(2)) * one.tries) for one in tested]
    q = q_values(torch.tensor(chance, dtype=torch.float64)).tolist()
    return [replace(one, q=value) for one, value in zip(tested, q, strict=True)]


def against(
    text: str, analysis: str, value: float, null: float, spread: float, draws: int, tries: int = 1, spreads: int = 1
) -> list[Finding]:
    """A statement whose null was drawn `draws` times: t of one more draw, as a normal z.

    `spreads` says at how many points the spread was seen, where it is that of all together.
    A null without any spread is beaten by nothing that equals it, and by anything else as by a thousandth of itself.
    """
    spread = max(spread, 1e-3 * abs(null), 1e-12)
    t = (value - null) / (spread * math.sqrt(1 + 1 / draws))
    return [Finding(text, analysis, value, null, spread, normal(t, spreads * (draws - 1)), tries)]


def normal(t: float, freedom: int) -> float:
    """The z that is as rare under a normal law as t is under Student's."""
    from scipy.special import ndtri, ndtri_exp, stdtr

    if not math.isfinite(t):
        return t
    p = float(stdtr(freedom, -abs(t)))
    rare = ndtri(p) if p > 1e-300 else ndtri_exp(_log_tail(abs(t), freedom))  # no float64 holds a rarer one
    return math.copysign(float(rare), t)


def _log_tail(t: float, freedom: int) -> float:
    """log P(T > t) far out: I_x(a, ½)/2 at x = ν/(ν + t²), a = ν/2, as its hypergeometric series."""
    from scipy.special import betaln, hyp2f1

    a, x = freedom / 2, freedom / (freedom + t * t)
    series = math.log(hyp2f1(a + 0.5, 1, a + 1, x))
    return a * math.log(x) + 0.5 * math.log1p(-x) - math.log(2 * a) - float(betaln(a, 0.5)) + series


def of_heads(text: str, analysis: str, values: np.ndarray, null: float, about: str = "") -> list[Finding]:
    """A statement about all heads of a model (or all layers), each a draw: t of their mean."""
    values = values[np.isfinite(values)]
    if len(values) < 3:
        return []
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    z = normal((float(values.mean()) - null) / max(error, 1e-12), len(values) - 1)
    return [Finding(text, analysis, float(values.mean()), null, error, z, about=about)]


def straightness(found: Datasets) -> list[Finding]:
    if "trajectory" not in found:
        return []
    path = found["trajectory"]
    if not path.sizes["draw"]:
        return []
    value, null = float(path.straightness.mean()), path.straightness_flipped
    how = "straighter" if value > float(null.mean()) else "less straight"
    text = (
        f"Tokens go {how} than chance: chord over path {value:.2f}, with each half-layer forwards or backwards at random "
        f"{float(null.mean()):.2f} ± {float(null.std()):.2f}."
    )
    return against(text, "trajectory", value, float(null.mean()), float(null.std()), len(null))


def identity(found: Datasets) -> list[Finding]:
    if "transport" not in found or "kappa_null" not in found["transport"]:
        return []
    moved, told = found["transport"], []
    last = moved.sizes["step"] - 1
    for name, what in (("kappa", "κ"), ("identity_share", "the share of tokens left in place by the optimal coupling")):
        whole = {part: float(moved[f"{name}{part}_strided"].values[-1, last]) for part in ("", "_null", "_null_sd")}
        how = "less" if whole[""] < whole["_null"] else "more"
        text = (
            f"From the embedding to the last layer, keeping every token's identity is {how} natural a way than chance "
            f"displacements would make it: {what} is {whole['']:.2f}, with displacements permuted {whole['_null']:.2f}."
        )
        told += against(text, "transport", whole[""], whole["_null"], whole["_null_sd"], moved.attrs["draws"])
    return told


def geometry(found: Datasets) -> list[Finding]:
    if "geometry_kept" not in found:
        return []
    row = found["geometry_kept"].sel(reference="embed").isel(point=-1)
    value, null, spread = float(row.rsa), float(row.rsa_null), float(row.rsa_null_sd)
    how = "is still there" if value > null else "is turned over"
    text = (
        f"Of the embedding's geometry a part {how} at the end: pairwise distances correlate by {value:.2f} with those of the "
        f"embedding, with tokens permuted by {null:.2f} ± {spread:.2f}."
    )
    return [
        Finding(text, "geometry_kept", value, null, spread, (value - null) / spread if spread > 0 else float("nan"))
    ]


def gathering(found: Datasets) -> list[Finding]:
    if "clusters" not in found or "effective_rank_null" not in found["clusters"]:
        return []
    gathered, told = found["clusters"], []
    for name, what in (("effective_rank", "directions in use (effective rank)"), ("cluster_count", "clusters at 45°")):
        ratio = gathered[name] / gathered[f"{name}_null"].where(gathered[f"{name}_null"] > 0)
        if not bool(np.isfinite(ratio).any()):
            continue
        row = gathered.isel(point=int(np.nanargmin(ratio.values)))
        value, null, spread = float(row[name]), float(row[f"{name}_null"]), float(row[f"{name}_null_sd"])
        how = "gathered" if value < null else "spread"
        text = (
            f"The cloud is most {how} after {row.point.item()}: {value:.1f} {what}, with coordinates shuffled among the "
            f"tokens {null:.1f}."
        )
        points = gathered.sizes["point"]
        told += against(text, "clusters", value, null, spread, gathered.attrs["draws"], points, points)
    return told


def meaning(found: Datasets) -> list[Finding]:
    if "purity" not in found:
        return []
    what = {"stem": "one word stem", "position": "one part of the text", "frequency": "one frequency"}
    made_of, told = found["purity"].isel(point=slice(1, None)), []  # equal tokens are equal points in the embedding
    for by, shared in what.items():
        row = made_of.sel(by=by).isel(point=int(np.argmax(made_of.purity_z.sel(by=by).values)))
        z, value, null = float(row.purity_z), float(row.purity), float(row.purity_null)
        text = f"After {row.point.item()} clusters hold tokens of {shared}: purity {value:.2f}, with names permuted {null:.2f}."
        spread = (value - null) / z if z else 0.0
        told.append(Finding(text, "purity", value, null, spread, z, made_of.sizes["point"]))
    return told


def climbing(found: Datasets) -> list[Finding]:
    if "energy" not in found:
        return []
    heads = found["energy"]
    count, tested = int(heads.gradient_like.sum()), heads.gradient_like.size
    at = np.unravel_index(int(np.nanargmax(heads.z.values)), heads.z.shape)
    text = (
        f"{count} of {tested} heads move tokens up their own energy beyond chance, L{at[0]}.H{at[1]} most: cos(Δ, ∇Λ) "
        f"{float(heads.cosine.values[at]):.2f}, with its content map turned at random 0 ± {float(heads.cosine_null_sd.values[at]):.2f}."
    )
    return [Finding(text, "energy", float(heads.cosine.values[at]), 0.0, float(heads.cosine_null_sd.values[at]),
                    float(heads.z.values[at]) if count else float("nan"), tested)]  # fmt: skip


def prediction(found: Datasets) -> list[Finding]:
    if "readout" not in found or found["readout"].sizes.get("elsewhere", 0) < 4:
        return []
    lens = found["readout"]
    first = lens["rank"].values == 1
    since = len(first) - int(np.argmin(first[::-1])) if not first.all() else 0
    here, elsewhere = float(np.log(max(float(lens.probability[-1]), 1e-30))), lens.log_probability_elsewhere.values
    text = (
        f"The answer is the first choice from {lens.point.values[min(since, len(first) - 1)]} on, and belongs to this place: "
        f"log p {here:.1f}, at earlier tokens {elsewhere.mean():.1f} ± {elsewhere.std(ddof=1):.1f}."
    )
    return against(text, "readout", here, float(elsewhere.mean()), float(elsewhere.std(ddof=1)), len(elsewhere))


def giants(found: Datasets) -> list[Finding]:
    if "massive_tokens" not in found or not found["massive_tokens"].sizes["token"]:
        return []
    sinks = found["massive_tokens"]
    top = int(np.argmax(sinks.largest.values))
    name, largest = sinks.attrs["tokens"][top], float(sinks.largest[top])
    mass, even = float(sinks.sink_mass.isel(token=top).max()), 1 / sinks.attrs["n"]
    text = (
        f"Token {int(sinks.token[top])} {name!r} is a sink: {largest:.0f} times the median length, "
        f"{100 * float(sinks.coordinate_share[top, 0]):.0f} % of it in coordinate {int(sinks.coordinate[top, 0])}, "
        f"and up to {100 * mass:.0f} % of a layer's attention goes to it ({100 * even:.0f} % where all get the same)."
    )
    spread = float(sinks.spread[top])
    z = math.log(largest) / max(spread, 1e-6)
    return [Finding(text, "massive_tokens", largest, 1.0, spread, z, sinks.attrs["n"] * sinks.sizes["point"])]


def operators(found: Datasets) -> list[Finding]:
    if "operators" not in found:
        return []
    heads, told = found["operators"], []
    says = {
        "symmetry": (
            0.0,
            "M is {} symmetric than chance: tr(MM)/tr(MMᵀ) has mean {:.2f} over all heads (random forms: 0).",
        ),
        "positive_share": (
            0.5,
            "M reads similarity {} than dissimilarity: the mean positive share is {:.2f} (random forms: .5).",
        ),
        "copying": (0.0, "Heads copy {} than they erase: the mean copying score is {:.2f} (random maps: 0)."),
        "alignment": (0.0, "F points {} along Mᵀ than against it: mean cosine {:.2f} (random maps: 0)."),
    }
    for name, (null, says_it) in says.items():
        mean = float(heads[name].mean())
        told += of_heads(
            says_it.format("more" if mean > null else "less", mean), "operators", heads[name].values.ravel(), null
        )
    return told


def similarity(found: Datasets) -> list[Finding]:
    if "agreement" not in found or "z" not in found["agreement"]:
        return []
    heads, told = found["agreement"], []
    z, sure, draws = heads.z.values, heads.q_value.values <= LEVEL, int(heads.attrs["draws"])
    for sign, what in ((1, "similarity in E"), (-1, "its opposite")):
        count = int((sure & (sign * z > 0)).sum())
        if not count:
            told.append(Finding("", "agreement", 0.0, 0.0, 0.0, 0.0, z.size))  # tested, and not found
            continue
        at = np.unravel_index(int(np.nanargmax(sign * z)), z.shape)
        value, null, spread = (float(heads[name].values[at]) for name in ("agreement", "null_mean", "null_sd"))
        text = (
            f"{count} of {z.size} heads read {what} beyond random heads of the same singular values ({draws} draws each), "
            f"L{at[0]}.H{at[1]} most: rank correlation {value:.2f} given distance and length, random {null:.2f} ± {spread:.2f}."
        )
        told += [replace(one, about=what) for one in against(text, "agreement", value, null, spread, draws, z.size)]
    return told


def nearness(found: Datasets) -> list[Finding]:
    if "agreement" not in found:
        return []
    heads = found["agreement"]
    near, like = heads.position_baseline.values.ravel(), heads.agreement.values.ravel()
    how = "more" if np.nanmean(near - like) > 0 else "less"
    text = (
        f"Nearness explains {how} of the scores than similarity: mean rank correlation {np.nanmean(near):.2f} over the heads, "
        f"of similarity {np.nanmean(like):.2f} once nearness and length are taken out."
    )
    return of_heads(text, "agreement", near - like, 0.0, "nearness")


def symmetric_agree(found: Datasets) -> list[Finding]:
    if "agreement" not in found or "operators" not in found:
        return []
    both = np.stack([found["agreement"].agreement.values.ravel(), found["operators"].symmetry.values.ravel()])
    both = both[:, np.isfinite(both).all(0)]
    if both.shape[1] < 5 or not both.std(1).all():
        return []
    ranks = both.argsort(1).argsort(1)
    rho, chance = float(np.atleast_2d(np.corrcoef(ranks))[0, 1]), 1 / math.sqrt(both.shape[1] - 1)
    text = (
        f"Heads with a more symmetric M read similarity {'more' if rho > 0 else 'less'}: rank correlation {rho:.2f} over "
        f"{both.shape[1]} heads, by chance 0 ± {chance:.2f}."
    )
    return [Finding(text, "operators", rho, 0.0, chance, rho / chance, about="agreement")]


def projected(found: Datasets) -> list[Finding]:
    if "distortion" not in found:
        return []
    heads, told = found["distortion"], []
    for image, what in (("query", "queries"), ("key", "keys"), ("content", "content")):
        rsa, null = heads.rsa.sel(image=image), heads.rsa_null.sel(image=image)
        text = (
            f"As {what}, heads keep {'less' if float((rsa - null).mean()) < 0 else 'more'} of the distances between tokens than "
            f"random projections of the same rank: mean correlation {float(rsa.mean()):.2f}, random {float(null.mean()):.2f}."
        )
        told += of_heads(text, "distortion", (rsa - null).values.ravel(), 0.0)
    mean, null = float(heads.mismatch.mean()), float(heads.mismatch_null.mean())
    text = (
        f"Queries and keys read spaces that lie {'nearer' if mean < null else 'further'} than random ones: mean sin² of their "
        f"angles {mean:.2f}, random {null:.2f}."
    )
    return told + of_heads(text, "distortion", (heads.mismatch - heads.mismatch_null).values.ravel(), 0.0, "mismatch")


def stacked(found: Datasets) -> list[Finding]:
    if "stack" not in found:
        return []
    layers = found["stack"]
    whole, null = layers.recovered.values[:, -1], layers.recovered_null.values[:, -1]
    text = (
        f"All heads of a layer together recover {'less' if whole.mean() < null.mean() else 'more'} of the distances between tokens than "
        f"random projections: mean over layers {whole.mean():.2f}, random {null.mean():.2f}."
    )
    told = of_heads(text, "stack", whole - null, 0.0)
    if layers.sizes["head"] < 2:
        return told
    shared = layers.overlap.values[:, ~np.eye(layers.sizes["head"], dtype=bool)].mean(1)
    null = layers.overlap_null.values
    text = (
        f"Heads of a layer read {'more' if shared.mean() > null.mean() else 'fewer'} directions in common than random spaces: mean overlap "
        f"{shared.mean():.2f}, random {null.mean():.2f}."
    )
    return told + of_heads(text, "stack", shared - null, 0.0, "overlap")


CANDIDATES: tuple[Candidate, ...] = (
    straightness, identity, geometry, gathering, meaning, climbing, prediction, giants, operators,
)  # fmt: skip
COVERS: tuple[Candidate, ...] = (similarity, nearness, symmetric_agree, projected, stacked)
"""What the covers are asked for."""


def sentences(told: Sequence[Finding], tested: int) -> list[str]:
    """Findings as a person reads them, and how many were looked for.

    >>> sentences([], 12)
    ['12 candidates were tested; none beat its null.']
    """
    if not told:
        return [f"{tested} candidates were tested; none beat its null."]
    lines = [f"{one.text} (z {one.z:.1f}, q {'< 1e-6' if one.q < 1e-6 else f'{one.q:.1g}'})" for one in told]
    return [*lines, f"{tested} candidates were tested; q is the share of false ones among those told so far."]
