"""Findings about a text: each one is significant after correction for everything that was tested.

A candidate is a function of the Results of a run. It returns one statement, or None if its analysis did not run. A new one is
a function and an entry in `CANDIDATES`. The seven questions (`verdicts.py`) are corrected together with them.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message, plural
from rheoscope.messages.numbers import format_fixed
from rheoscope.picture.token_labels import display_token
from rheoscope.space.results import Results
from rheoscope.statistics.statement import (
    SIGNIFICANCE_LEVEL,
    Statement,
    correct_for_family,
    from_draws,
    from_moments,
    from_units,
)

if TYPE_CHECKING:
    import xarray

MAX_FINDINGS = 5
Candidate = Callable[[Results], Statement | None]


def findings(results: Results, max_findings: int = MAX_FINDINGS) -> tuple[list[Statement], int]:
    """At most `most` statements that beat their null, the surest first; and how many places were looked at.

    **Answers** "what is worth saying of this text in this model, besides the seven questions?"

    **Formula** p is how often chance goes as far: Student's law where a null was drawn, the normal law where its moments are
    exact; q = p times everything that a run tests, so that a text of noise gets any statement in 5 of 100 cases at most.

    **Laws** nothing that fails its null is told; a null without spread tells nothing.

    >>> import rheoscope as rs
    >>> from rheoscope.report.analysis_runs import Request, Subject, run_analyses
    >>> model = rs.load()
    >>> text = "The keys to the cabinet are on the table"
    >>> told, tested = findings(run_analyses(Subject(model, text, model.trace(text)), [Request("trajectory")]))
    >>> len(told) <= tested
    True
    """
    statements = [
        statement
        for candidate in CANDIDATES
        if (statement := candidate(results)) is not None and math.isfinite(statement.p)
    ]
    corrected_statements = correct_for_family(statements, FAMILY_SIZE)
    significant = sorted(
        (statement for statement in corrected_statements if statement.q <= SIGNIFICANCE_LEVEL),
        key=lambda statement: statement.q,
    )
    return significant[:max_findings], sum(statement.tries for statement in corrected_statements)


def findings_dataset(statements: Sequence[Statement], n_tested: int) -> "xarray.Dataset":
    """Findings as a Dataset (finding): for JSON and for programs; `attrs["tested"]` counts the places.

    >>> findings_dataset([Statement("a", "b", 1.0, 0.0, 0.5, 0.001)], 7).attrs["tested"]
    7
    """
    import xarray as xr

    names = ("text", "analysis", "value", "null", "spread", "p", "q", "tries")
    data = {name: ("finding", [getattr(statement, name) for statement in statements]) for name in names}
    return xr.Dataset(data, attrs={"analysis": "findings", "tested": n_tested, "level": SIGNIFICANCE_LEVEL})


def straightness(results: Results) -> Statement | None:
    trajectory = results.datasets.get("trajectory")
    if trajectory is None or not trajectory.sizes["draw"]:
        return None
    value, null = float(trajectory.straightness.mean()), trajectory.straightness_null_draws.values
    template = (
        Message("Tokens move straighter than under the null")
        if value > null.mean()
        else Message("Tokens move less straight than under the null")
    )
    text = Message(
        "{comparison}: chord over path {value} (half-layers with random signs {null} ± {sd}).",
        comparison=template,
        value=format_fixed(value),
        null=format_fixed(null.mean()),
        sd=format_fixed(null.std()),
    )
    return from_draws(text, "trajectory", value, null)


def transport_kappa(results: Results) -> Statement | None:
    transport = results.datasets.get("transport")
    if transport is None or "kappa_null_draws" not in transport:
        return None
    value, null = float(transport.kappa_strided.values[-1, -1]), transport.kappa_null_draws.values
    comparison = (
        Message("Keeping every token's identity is less efficient than under the null")
        if value < null.mean()
        else Message("Keeping every token's identity is more efficient than under the null")
    )
    text = Message(
        "{comparison}: κ = {value} from the embedding to the last layer (permuted displacements {null}).",
        comparison=comparison,
        value=format_fixed(value),
        null=format_fixed(null.mean()),
    )
    return from_draws(text, "transport", value, null)


def geometry_retention(results: Results) -> Statement | None:
    if not results.has("geometry_kept"):
        return None
    value = _final_rsa(results.datasets["geometry_kept"])
    null = results.control_values("geometry_kept", _final_rsa)
    if not null:
        return None
    comparison = (
        Message("The model keeps less of the embedding's geometry than untrained models do")
        if value < np.mean(null)
        else Message("The model keeps more of the embedding's geometry than untrained models do")
    )
    text = Message(
        "{comparison}: distances at the end correlate by {value} with those at the embedding (untrained {null}).",
        comparison=comparison,
        value=format_fixed(value),
        null=format_fixed(float(np.mean(null))),
    )
    return from_draws(text, "geometry_kept", value, null)


def _final_rsa(dataset: "xarray.Dataset") -> float:
    return float(dataset.sel(reference="embed").isel(point=-1).rsa)


def massive_token_sink(results: Results) -> Statement | None:
    massive = results.datasets.get("massive_tokens")
    if massive is None or not massive.sizes["token"]:
        return None
    largest_index = int(np.argmax(massive.max_relative_norm.values))
    token_text, largest, null_sd = (
        massive.attrs["tokens"][largest_index],
        float(massive.max_relative_norm[largest_index]),
        float(massive.log_norm_sd[largest_index]),
    )
    sink_mass, uniform_mass = float(massive.sink_mass.isel(token=largest_index).max()), 1 / massive.attrs["n"]
    text = Message(
        "Token {position} {token} is a sink: {ratio:.0f} times the median norm, {percent:.0f} % of it in coordinate {coordinate}. "
        "It receives up to {mass:.0f} % of a layer's attention (uniform: {uniform:.0f} %).",
        position=int(massive.token[largest_index]),
        token=display_token(token_text),
        ratio=largest,
        percent=100 * float(massive.coordinate_share[largest_index, 0]),
        coordinate=int(massive.coordinate[largest_index, 0]),
        mass=100 * sink_mass,
        uniform=100 * uniform_mass,
    )
    tries = massive.attrs["n"] * massive.sizes["point"]
    return from_moments(text, "massive_tokens", math.log(largest), 0.0, null_sd, tries)


OPERATOR_CLAIMS = {
    "symmetry": (
        Message("M is more symmetric than randomly rotated heads"),
        Message("M is less symmetric than randomly rotated heads"),
        Message("mean tr(MM)/tr(MMᵀ)"),
    ),
    "positive_share": (
        Message("M favours similar tokens more than randomly rotated heads"),
        Message("M favours similar tokens less than randomly rotated heads"),
        Message("mean positive share"),
    ),
    "copying": (
        Message("Heads copy more than randomly rotated heads"),
        Message("Heads copy less than randomly rotated heads"),
        Message("mean copying score"),
    ),
    "alignment": (
        Message("F is more aligned with Mᵀ than in randomly rotated heads"),
        Message("F is less aligned with Mᵀ than in randomly rotated heads"),
        Message("mean cosine"),
    ),
}
"""Field of `operators` → the claim if it is larger, the claim if it is smaller, and what the number is."""


def operator_candidate(name: str) -> Candidate:
    """The mean of a field over all heads, compared with randomly rotated heads; heads that share a key stay together."""

    def candidate(results: Results) -> Statement | None:
        dataset = results.datasets.get("operators")
        if dataset is None or f"mean_{name}_null_draws" not in dataset:
            return None
        value, null = float(dataset[name].mean()), dataset[f"mean_{name}_null_draws"].values
        larger, smaller, quantity = OPERATOR_CLAIMS[name]
        text = Message(
            "{comparison} ({quantity} {value}; null {null}).",
            comparison=larger if value > null.mean() else smaller,
            quantity=quantity,
            value=format_fixed(value),
            null=format_fixed(null.mean()),
        )
        return from_draws(text, "operators", value, null)

    return candidate


def _key_group_means(results: Results, values: "xarray.DataArray") -> np.ndarray:
    """Means over the heads that share a key, which are independent under random weights."""
    n_groups = len(results.view.layer_heads[0].W_K)
    return values.values.reshape(values.sizes["layer"], n_groups, -1).mean(-1).ravel()


def position_vs_similarity(results: Results) -> Statement | None:
    agreement = results.datasets.get("agreement")
    if agreement is None:
        return None
    position_effect, similarity_effect = (
        _key_group_means(results, agreement[name]) for name in ("position_baseline", "agreement")
    )
    comparison = (
        Message("Scores depend more on distance than on similarity")
        if np.nanmean(position_effect - similarity_effect) > 0
        else Message("Scores depend less on distance than on similarity")
    )
    text = Message(
        "{comparison}: mean rank correlation {position} with distance, {similarity} with similarity given distance and norm.",
        comparison=comparison,
        position=format_fixed(np.nanmean(position_effect)),
        similarity=format_fixed(np.nanmean(similarity_effect)),
    )
    return from_units(text, "agreement", position_effect - similarity_effect, 0.0)


def symmetry_vs_agreement(results: Results) -> Statement | None:
    if not results.has("agreement", "operators"):
        return None
    paired_values = np.stack(
        [
            _key_group_means(results, results.datasets[analysis][field])
            for analysis, field in (("agreement", "agreement"), ("operators", "symmetry"))
        ]
    )
    paired_values = paired_values[:, np.isfinite(paired_values).all(0)]
    if paired_values.shape[1] < 8 or not paired_values.std(1).all():
        return None
    rho, null_sd = (
        float(np.atleast_2d(np.corrcoef(paired_values.argsort(1).argsort(1)))[0, 1]),
        1 / math.sqrt(paired_values.shape[1] - 1),
    )
    comparison = (
        Message("Heads with a more symmetric M follow similarity more")
        if rho > 0
        else Message("Heads with a more symmetric M follow similarity less")
    )
    text = Message(
        "{comparison} (rank correlation {rho}; null 0 ± {sd}).",
        comparison=comparison,
        rho=format_fixed(rho),
        sd=format_fixed(null_sd),
    )
    return from_moments(text, "operators", rho, 0.0, null_sd)


def query_key_mismatch(results: Results) -> Statement | None:
    distortion = results.datasets.get("distortion")
    if distortion is None:
        return None
    value, null, null_sd = (float(distortion[f"mean_mismatch{suffix}"]) for suffix in ("", "_null", "_null_sd"))
    comparison = (
        Message("Queries and keys read more similar subspaces than randomly rotated heads")
        if value < null
        else Message("Queries and keys read less similar subspaces than randomly rotated heads")
    )
    text = Message(
        "{comparison} (mean sin² of the principal angles {value}; null {null}).",
        comparison=comparison,
        value=format_fixed(value),
        null=format_fixed(null),
    )
    return from_moments(text, "distortion", value, null, null_sd)


def stack_recovery(results: Results) -> Statement | None:
    stack = results.datasets.get("stack")
    if stack is None or "mean_recovered_null_draws" not in stack:
        return None
    value, null = float(stack.recovered[:, -1].mean()), stack.mean_recovered_null_draws.values
    comparison = (
        Message("The heads of a layer together recover less of the distances than randomly rotated heads")
        if value < null.mean()
        else Message("The heads of a layer together recover more of the distances than randomly rotated heads")
    )
    text = Message(
        "{comparison} (mean over layers {value}; null {null}).",
        comparison=comparison,
        value=format_fixed(value),
        null=format_fixed(null.mean()),
    )
    return from_draws(text, "stack", value, null)


CANDIDATES: tuple[Candidate, ...] = (
    straightness,
    transport_kappa,
    geometry_retention,
    massive_token_sink,
    *map(operator_candidate, OPERATOR_CLAIMS),
    position_vs_similarity,
    symmetry_vs_agreement,
    query_key_mismatch,
    stack_recovery,
)
N_VERDICT_STATEMENTS = 7
"""Statements behind the seven questions."""
FAMILY_SIZE = N_VERDICT_STATEMENTS + len(CANDIDATES)
"""All tests of a run; every p-value is corrected for them."""


def finding_sentences(statements: Sequence[Statement], n_tested: int) -> list[str]:
    """Findings as sentences, followed by the number of tests.

    >>> finding_sentences([], 12)
    ['12 numbers were tested against their null; none is significant.']
    >>> finding_sentences([], 0)
    ['No number of this text could be tested against a null.']
    """
    if not n_tested:
        return [Message("No number of this text could be tested against a null.")]
    if not statements:
        return [
            plural(
                "{n} number was tested against its null; it is not significant.",
                "{n:,} numbers were tested against their null; none is significant.",
                n=n_tested,
            )
        ]
    lines = [Message("{finding} (q {q})", finding=statement.text, q=_format_q(statement.q)) for statement in statements]
    note = plural(
        "{n} number was tested; q is the family-wise error rate on random data.",
        "{n:,} numbers were tested; q is the family-wise error rate on random data.",
        n=n_tested,
    )
    return [*lines, note]


def _format_q(q: float) -> str:
    return "< .001" if q < 1e-3 else f"= {q:.1g}"
