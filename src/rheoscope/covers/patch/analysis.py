"""Patching: which parts of the model carry the difference between the predictions of two texts.

base text ── model ──► measure            the base run, with one part at a time from the donor's run
               ▲
donor text ── a point, a head, its weights, its values, or an MLP update
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.layer_inputs import provenance
from rheoscope.covers.patch.metrics import ANSWER_SEPARATOR, METRICS, signed_share
from rheoscope.covers.patch.pairs import Pair, PairBatch, join_texts, unequal_lengths
from rheoscope.covers.patch.patched_runs import HEAD_PARTS, PatchedRuns, both_directions
from rheoscope.covers.relation_swap.analysis import check_unembedding, reordered_ids
from rheoscope.messages.message import Message
from rheoscope.running.progress import count_steps
from rheoscope.running.runner import RunnableModel
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.model import Text, check_same_weights
from rheoscope.space.report_run import ReportRun
from rheoscope.space.settings import Choices, Seed, TokenIndex, Top
from rheoscope.space.step import Step
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

if TYPE_CHECKING:
    import xarray

DIRECTIONS = ("restore", "disrupt")
N_PARTS = 1 + len(HEAD_PARTS)
"""The rows of a layer: its MLP, and the parts of its heads."""
Part = TypeVar("Part", bound=Hashable)
Metric = Annotated[str, Choices(tuple(METRICS))]


@torch.no_grad()
def patch(
    model: RunnableModel,
    trace: Trace,
    other: Text | None = None,
    answers: str = "",
    metric: Metric = "logit_diff",
    token: TokenIndex = -1,
    top: Top = 4,
    seed: Seed = 0,
) -> "xarray.Dataset":
    """Activation patching between a text and another one that differs from it in a few tokens.

    **Question** Which parts of the model carry the difference between the two predictions, and do they carry it through M (where a
    head looks) or through F (what it moves)?

    **Formula** m is a metric of the prediction at `token`: `logit_diff` (logit of the text's answer minus that of the other text's
    answer), `prob` (of the text's answer), `kl` (from the text's prediction) or `loss` (of the text's answer). `restore` runs the
    other text with one part from this text. Its effect is (m(patched) − m(other)) / (m(text) − m(other)). `disrupt` runs this text
    with one part from the other text. Its effect is (m(text) − m(patched)) / (m(text) − m(other)). 1 is the whole difference. The
    parts are a point of the stream, the update of an MLP at one token, and a head. `weights` patches only the attention weights of
    a head (they depend on M), `values` only its values (they depend on F). `output` patches both.

    **Settings** `other` has as many tokens as the text. The default is the same tokens in another order. `answers=" on| in"` are the
    two answers, each a single token. By default they are the likeliest tokens after the two texts. The effect of a head at single
    tokens is computed for the `top` heads with the largest effect in `restore`.

    **Returns** (direction, step, token): `stream`. (direction, layer, token): `mlp`. (direction, layer, head): `output`, `weights`,
    `values`. (direction, strong_head, token): `head_token`. Scalars: `metric_text`, `metric_other`. The coordinate `token_text` has
    the tokens of both texts.

    **Laws** A point that is patched at the last step and the measured token has effect 1. Effects of points behind the measured
    token are 0 in a causal model. A head's effects equal those of a forward hook that replaces its output.

    **Source** Wang et al. 2022, arXiv:2211.00593; Zhang and Nanda 2023, arXiv:2309.16042.

    **See also** `relation_swap`, which swaps the weights or values of whole layers; `surgery`, which changes M and F.

    >>> import rheoscope as rs
    >>> model, text = rs.load(), "He lived in London. She lived in"
    >>> result = rs.patch(model, model.trace(text), other="He lived in Paris. She lived in")
    >>> result.attrs["answers"], round(float(result.stream.sel(direction="restore", step="embed")[5]), 4)
    (' London| Paris', 1.0)
    """
    batch = pair_batch(model, trace, other, answers, metric, token, seed)
    changes, strongest = measure_changes([batch], top)
    total = changes.pop("total")
    values = {name: signed_share(change[..., 0], total[0]) for name, change in changes.items()}
    values |= {"metric_text": batch.metrics[0, 0], "metric_other": batch.metrics[1, 0]}
    coords = coordinates(trace, pair_tokens(trace.tokens, batch.corrupt.tokens[0]), strongest)
    return PATCH.label(values, coords, provenance(trace, True, **pair_settings(batch), seed=seed))


def pair_batch(
    model: RunnableModel, trace: Trace, other: Text | None, answers: str, metric: str, token: int, seed: int
) -> PairBatch:
    """A text and another one as a batch of one pair, whose groups are its tokens."""
    check_same_weights(model, trace)
    check_unembedding(model)
    pair = Pair(trace, reordered_ids(trace.ids, seed) if other is None else other, answers)
    other_trace = model.trace(pair.corrupt)
    if len(other_trace) != len(trace):
        raise unequal_lengths(len(trace), len(other_trace))
    groups, names = torch.eye(len(trace), dtype=torch.bool)[None], tuple(map(str, range(len(trace))))
    texts = Traces.from_trace(trace), Traces.from_trace(other_trace)
    return join_texts(model, *texts, groups, names, [pair], answers, metric, token)


def pair_settings(batch: PairBatch) -> dict[str, Any]:
    """The other text, the answers and the metric of a batch of one pair, for the attributes of a result."""
    tokens = [batch.answers.clean[0], batch.answers.corrupt[0]]
    return {
        "other": batch.corrupt.texts[0] or "".join(batch.corrupt.tokens[0]),
        "answers": ANSWER_SEPARATOR.join(batch.model.token_strings(torch.stack(tokens))),
        "metric": batch.metric,
        "token": batch.token,
    }


def coordinates(trace: Trace, labels: list[str], strongest: list[tuple[int, int]]) -> dict[str, Any]:
    """The labels of directions, steps, layers, heads and tokens."""
    return {
        "direction": list(DIRECTIONS),
        "step": [str(step) for step in patched_steps(trace)],
        "layer": range(trace.view.layers),
        "head": range(trace.view.heads),
        "token": range(len(labels)),
        "token_text": ("token", labels),
        "strong_head": [f"L{layer}.H{head}" for layer, head in strongest],
    }


def measure_changes(
    batches: Sequence[PairBatch], n_strongest: int
) -> tuple[dict[str, Float[Tensor, "*n p"]], list[tuple[int, int]]]:
    """How far every part moves the metric from the base text to the donor, for every pair, and the strongest heads.

    A change is positive where the metric moves as the whole text would move it. `total` is the change by the whole text.
    """
    runs, n_layers = [both_directions(batch) for batch in batches], batches[0].clean.view.layers
    n_rows = len(batches) * len(DIRECTIONS) * (len(patched_steps(batches[0].clean)) + n_layers * N_PARTS + n_layers)
    advance = count_steps(n_rows)
    measured = [[measure_parts(patched_runs, advance) for patched_runs in both] for both in runs]
    changes = join_changes(batches, measured)
    total = torch.cat([batch.metrics[0] - batch.metrics[1] for batch in batches])
    strongest = strongest_heads(changes["output"][0].sum(-1), n_strongest)
    by_layer = {layer: [head for of, head in strongest if of == layer] for layer in range(n_layers)}
    head_tokens = [[measure_head_tokens(patched_runs, by_layer, advance) for patched_runs in both] for both in runs]
    order = [(layer, head) for layer, heads in by_layer.items() for head in heads]
    rows = join_changes(batches, head_tokens)["head_token"]
    changes["head_token"] = rows[:, [order.index(head) for head in strongest]]
    return changes | {"total": total}, strongest


def join_changes(
    batches: Sequence[PairBatch], measured: Sequence[Sequence[dict[Part, Tensor]]]
) -> dict[Part, Float[Tensor, "2 *n p"]]:
    """The changes of the metric in both directions by every part, or edge, for the pairs of all batches."""
    changes = [
        {name: torch.stack([restore[name] - batch.metrics[1], batch.metrics[0] - disrupt[name]]) for name in restore}
        for batch, (restore, disrupt) in zip(batches, measured, strict=True)
    ]
    return {name: torch.cat([change[name] for change in changes], -1) for name in changes[0]}


def pair_tokens(tokens: Sequence[str], other_tokens: Sequence[str]) -> list[str]:
    """The tokens of both texts; a token that differs from the other text's is followed by that one.

    >>> pair_tokens(["He", " lived", " in", " London"], ["He", " lived", " in", " Paris"])[-1]
    ' London/ Paris'
    """
    pairs = zip(tokens, other_tokens, strict=True)
    return [token if token == other_token else f"{token}/{other_token}" for token, other_token in pairs]


def patched_steps(texts: Trace | Traces) -> list[Step]:
    """The steps that the model reads."""
    return [step for step in texts.steps if step not in texts.unread_steps]


def measure_parts(patched_runs: PatchedRuns, advance: Callable[[], object]) -> dict[str, Float[Tensor, "*n p"]]:
    """The metric with every part of the stream, the MLPs and the heads."""

    def stack(rows: Iterable[Tensor]) -> Tensor:
        finished = []
        for row in rows:
            finished.append(row)
            advance()
        return torch.stack(finished)

    layers = range(patched_runs.base.view.layers)
    parts = {"stream": stack(map(patched_runs.stream, patched_steps(patched_runs.base)))}
    parts["mlp"] = stack(map(patched_runs.mlp, layers))
    return parts | {part: stack(patched_runs.heads(layer, part) for layer in layers) for part in HEAD_PARTS}


def measure_head_tokens(
    patched_runs: PatchedRuns, heads_by_layer: Mapping[int, list[int]], advance: Callable[[], object]
) -> dict[str, Float[Tensor, "c s p"]]:
    """The metric with the output of a head at a group of tokens, for some heads, layer by layer."""
    rows = []
    for layer, heads in heads_by_layer.items():
        if heads:
            rows.append(patched_runs.head_groups(layer, heads))
        advance()
    return {"head_token": torch.cat(rows)}


def strongest_heads(effects: Float[Tensor, "l h"], n: int) -> list[tuple[int, int]]:
    """Layer and head of the n largest effects, positive or negative.

    >>> strongest_heads(torch.tensor([[0.1, -0.5], [0.3, 0.0]]), 2)
    [(0, 1), (1, 0)]
    """
    order = effects.abs().flatten().nan_to_num().argsort(descending=True, stable=True)[:n].tolist()
    return [divmod(index, effects.shape[1]) for index in order]


HEAD_DIMS = ("direction", "layer", "head")
PATCH = Analysis(
    name="patch",
    question="Which parts of the model carry the difference between this text and another one?",
    ask=patch,
    needs="model",
    expensive=True,
    report_runs=(ReportRun("patch", 0, options=("other", "answers", "metric", "token", "top")),),
    fields={
        "stream": Field(("direction", "step", "token"), Message("effect of patching one point of the stream")),
        "mlp": Field(("direction", "layer", "token"), Message("effect of patching the update of an MLP at one token")),
        "output": Field(HEAD_DIMS, Message("effect of patching the output of a head at all tokens")),
        "weights": Field(HEAD_DIMS, Message("effect of patching only the attention weights of a head, which M makes")),
        "values": Field(HEAD_DIMS, Message("effect of patching only the values of a head, which F moves")),
        "head_token": Field(
            ("direction", "strong_head", "token"), Message("effect of patching one of the strongest heads at one token")
        ),
        "metric_text": Field((), Message("the metric after this text")),
        "metric_other": Field((), Message("the metric after the other text")),
    },
)
