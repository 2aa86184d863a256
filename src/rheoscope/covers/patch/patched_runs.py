"""Runs of a base text in which one part at a time comes from the run of a donor text.

Nothing before the patched part differs from the base run, so earlier blocks are not computed again, and the donor's part
is a constant: a head's output is made from the donor's weights, the donor's values, or both.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.space.model import Edits, Hooks, LayerEdit, Model
from rheoscope.space.step import Step
from rheoscope.space.trace import Trace

HEAD_PARTS = ("output", "weights", "values")
"""What a head takes from the donor: its output, its attention weights (through M), or its values (through F)."""
TOKENS_PER_RUN = 4096
"""Texts run in batches of about this many tokens."""


@dataclass(frozen=True, eq=False)
class PatchedRuns:
    """A base text, a donor text with as many tokens, and the metric of the log probabilities at one token."""

    model: Model
    base: Trace
    donor: Trace
    measure: Callable[[Float[Tensor, "b v"]], Float[Tensor, " b"]]
    token: int
    _outputs: dict[int, list[Any]] = field(default_factory=dict, init=False, repr=False)

    def stream(self, step: Step) -> Float[Tensor, " n"]:
        """The metric with the donor's point at this step, for every token."""
        points = self.donor.points_at(step)
        first_block = 0 if step.layer is None else step.layer + step.is_end_of_layer
        return self._run(len(self.base), first_block, lambda tokens: ({}, {step: partial(_set_points, points, tokens)}))

    def mlp(self, layer: int) -> Float[Tensor, " n"]:
        """The metric with the donor's update of the MLP of a layer, for every token."""
        end = self._end_of_layer(layer)
        difference = self._mlp_update(self.donor, layer) - self._mlp_update(self.base, layer)
        return self._run(
            len(self.base), layer + 1, lambda tokens: ({}, {end: partial(_add_to_points, difference, tokens)})
        )

    def heads(self, layer: int, part: str) -> Float[Tensor, " h"]:
        """The metric with a part of the donor's head, for every head of a layer."""
        outputs = self.donor_outputs(layer, part)
        return self._run(len(outputs), layer, lambda heads: ({layer: _set_heads(outputs, heads)}, {}))

    def head_tokens(self, layer: int, head: int) -> Float[Tensor, " n"]:
        """The metric with the donor's output of a head at one token, for every token."""
        outputs = self.donor_outputs(layer, "output")
        return self._run(
            len(self.base), layer, lambda tokens: ({layer: _set_heads_at_tokens(outputs, head, tokens)}, {})
        )

    def donor_outputs(self, layer: int, part: str) -> Float[Tensor, "h n e"]:
        """What the heads of a layer mix, with the donor's weights, the donor's values, or both."""
        heads = self.base.view.heads_of(layer)
        base_q, base_k, base_v = heads.qkv(self.base.layer_input(layer))
        q, k, v = heads.qkv(self.donor.layer_input(layer))
        queries_and_keys = (base_q, base_k) if part == "values" else (q, k)
        return heads.mechanism.attend(*queries_and_keys, base_v if part == "weights" else v)[0]

    def _end_of_layer(self, layer: int) -> Step:
        return Step(layer, "resid_post")

    def _mlp_update(self, trace: Trace, layer: int) -> Float[Tensor, "n d"]:
        return trace.points_at(self._end_of_layer(layer)) - trace.points[trace.mid_steps[layer]]

    def _run(
        self, n_parts: int, first_block: int, changes: Callable[[Int[Tensor, " b"]], tuple[Edits, Hooks]]
    ) -> Float[Tensor, " parts"]:
        """The metric of every part, in batches; blocks before `first_block` are not computed again."""
        rows_per_run = max(1, TOKENS_PER_RUN // len(self.base))
        values = []
        for parts in torch.arange(n_parts, device=self.base.points.device).split(rows_per_run):
            edits, hooks = changes(parts)
            ids, reused = self.base.ids.expand(len(parts), -1), self._block_outputs(len(parts))[:first_block]
            logits = self.model.run_batch(ids, edit=edits, hooks=hooks, block_outputs=reused)[:, self.token]
            values.append(self.measure(logits.double().log_softmax(-1)))
        return torch.cat(values)

    def _block_outputs(self, n_rows: int) -> list[Any]:
        """The blocks' outputs for so many copies of the base text."""
        if n_rows not in self._outputs:
            self._outputs[n_rows] = self.model.block_outputs(self.base.ids.expand(n_rows, -1))
        return self._outputs[n_rows]


def _set_points(new_points: Float[Tensor, "n d"], tokens: Int[Tensor, " b"], x: Float[Tensor, "b n d"]) -> Tensor:
    """Row r with the new point of its own token."""
    rows = torch.arange(len(tokens), device=x.device)
    return x.index_put((rows, tokens), new_points[tokens].to(x))


def _add_to_points(updates: Float[Tensor, "n d"], tokens: Int[Tensor, " b"], x: Float[Tensor, "b n d"]) -> Tensor:
    """Row r with the update added to its own token."""
    rows = torch.arange(len(tokens), device=x.device)
    return x.index_put((rows, tokens), updates[tokens].to(x), accumulate=True)


def _set_heads(outputs: Float[Tensor, "h n e"], heads: Int[Tensor, " b"]) -> LayerEdit:
    """Row r with the new output of its own head."""

    def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        rows = torch.arange(len(heads), device=out.device)
        return out.index_put((rows, heads), outputs[heads].to(out))

    return edit


def _set_heads_at_tokens(outputs: Float[Tensor, "h n e"], head: int, tokens: Int[Tensor, " b"]) -> LayerEdit:
    """Row r with the new output of the head at its own token."""

    def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        rows = torch.arange(len(tokens), device=out.device)
        return out.index_put((rows, torch.full_like(rows, head), tokens), outputs[head, tokens].to(out))

    return edit
