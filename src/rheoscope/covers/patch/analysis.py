"""Patching: which parts of the model carry the difference between the predictions of two texts.

base text ── model ──► measure            the base run, with one part at a time from the donor's run
               ▲
donor text ── a point, a head, its weights, its values, or an MLP update
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.layer_inputs import provenance
from rheoscope.covers.patch.metrics import ANSWER_SEPARATOR, METRICS, find_answers
from rheoscope.covers.patch.patched_runs import HEAD_PARTS, PatchedRuns
from rheoscope.covers.relation_swap.analysis import check_unembedding, reordered_ids
from rheoscope.messages.message import Message
from rheoscope.running.progress import tick
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.model import Model, Text, check_same_weights
from rheoscope.space.report_run import ReportRun
from rheoscope.space.safe_arithmetic import safe_divide
from rheoscope.space.settings import Choices, Seed, TokenIndex, Top
from rheoscope.space.step import Step
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

DIRECTIONS = ("restore", "disrupt")
Metric = Annotated[str, Choices(tuple(METRICS))]


@torch.no_grad()
def patch(
    model: Model,
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
    check_same_weights(model, trace)
    check_unembedding(model)
    other_trace = model.trace(reordered_ids(trace.ids, seed) if other is None else other)
    if len(other_trace) != len(trace):
        raise RheoscopeError(
            Message(
                "other must have as many tokens as the text ({expected}), got {received}; use another text",
                expected=len(trace),
                received=len(other_trace),
            )
        )
    log_probs = model.run_batch(torch.stack([trace.ids, other_trace.ids]))[:, token].double().log_softmax(-1)
    found_answers = find_answers(model, answers, *log_probs)

    def measure(rows: Float[Tensor, "b v"]) -> Float[Tensor, " b"]:
        return METRICS[metric](rows, found_answers)

    runs = (
        PatchedRuns(model, other_trace, trace, measure, token),
        PatchedRuns(model, trace, other_trace, measure, token),
    )
    values, strongest = measure_effects(runs, measure(log_probs), top)
    answer_strings = model.token_strings([found_answers.clean, found_answers.corrupt])
    settings = {
        "other": other_trace.text or "".join(other_trace.tokens),
        "answers": ANSWER_SEPARATOR.join(answer_strings),
        "metric": metric,
        "token": token,
        "seed": seed,
    }
    coords = coordinates(trace, other_trace) | {"strong_head": [f"L{layer}.H{head}" for layer, head in strongest]}
    return PATCH.label(values, coords, provenance(trace, True, **settings))


def coordinates(trace: Trace, other_trace: Trace) -> dict[str, Any]:
    """The labels of directions, steps, layers, heads and tokens."""
    return {
        "direction": list(DIRECTIONS),
        "step": [str(step) for step in patched_steps(trace)],
        "layer": range(trace.view.layers),
        "head": range(trace.view.heads),
        "token": range(len(trace)),
        "token_text": ("token", pair_tokens(trace.tokens, other_trace.tokens)),
    }


def measure_effects(
    runs: tuple[PatchedRuns, PatchedRuns], metrics: Float[Tensor, "2"], n_strongest: int
) -> tuple[dict[str, Tensor], list[tuple[int, int]]]:
    """The effects of all parts in both directions, and the strongest heads. `metrics` are those of the two texts."""

    def to_effects(rows: list[Tensor]) -> Float[Tensor, "2 *n"]:
        changes, total = torch.stack([rows[0] - metrics[1], metrics[0] - rows[1]]), metrics[0] - metrics[1]
        return safe_divide(changes * total.sign(), total.abs())

    measured = [measure_parts(patched_runs, done) for done, patched_runs in enumerate(runs)]
    effects = {name: to_effects([parts[name] for parts in measured]) for name in measured[0]}
    strongest = strongest_heads(effects["output"][0], n_strongest)
    head_tokens = [
        torch.stack([patched_runs.head_tokens(layer, head) for layer, head in strongest]) for patched_runs in runs
    ]
    scalars = {"metric_text": metrics[0], "metric_other": metrics[1]}
    return effects | {"head_token": to_effects(head_tokens)} | scalars, strongest


def pair_tokens(tokens: Sequence[str], other_tokens: Sequence[str]) -> list[str]:
    """The tokens of both texts; a token that differs from the other text's is followed by that one.

    >>> pair_tokens(["He", " lived", " in", " London"], ["He", " lived", " in", " Paris"])[-1]
    ' London/ Paris'
    """
    pairs = zip(tokens, other_tokens, strict=True)
    return [token if token == other_token else f"{token}/{other_token}" for token, other_token in pairs]


def patched_steps(trace: Trace) -> list[Step]:
    """The steps that the model reads."""
    return [step for step in trace.steps if step not in trace.unread_steps]


def measure_parts(patched_runs: PatchedRuns, done: int) -> dict[str, Tensor]:
    """The metric with every part of the stream, the MLPs and the heads; `done` of two directions are complete."""
    trace = patched_runs.base
    steps, layers = patched_steps(trace), range(trace.view.layers)
    n_rows = len(steps) + len(layers) * (1 + len(HEAD_PARTS))

    def with_ticks(first: int, rows: Iterable[Tensor]) -> Tensor:
        finished = []
        for row in rows:
            finished.append(row)
            tick(done * n_rows + first + len(finished), len(DIRECTIONS) * n_rows)
        return torch.stack(finished)

    parts = {"stream": with_ticks(0, map(patched_runs.stream, steps))}
    parts["mlp"] = with_ticks(len(steps), map(patched_runs.mlp, layers))
    for index, part in enumerate(HEAD_PARTS, 1):
        rows = (patched_runs.heads(layer, part) for layer in layers)
        parts[part] = with_ticks(len(steps) + index * len(layers), rows)
    return parts


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
