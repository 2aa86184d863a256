"""A text as points of E: where every token is after every half-layer, and what each head did to it there."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.attention.call_checks import check_finite
from rheoscope.files import check_free, signature, write_file
from rheoscope.notebook_html import card, cut
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head_contributions import Carried
from rheoscope.space.head_outputs import carried_of
from rheoscope.space.step import Step
from rheoscope.space.view import View


@dataclass(frozen=True, eq=False)
class Trace:
    """One text: `points` (P, N, d) after every step, `steps` what they are, `tokens`, `ids`, `text`, `logits` when asked.

    Only points are kept, and what heads carried once an analysis has asked for it (half as large again). Scores, weights
    and displacements are recomputed from the View when asked, so nothing of size L x H x N x N ever exists. Where a model in half
    precision runs on a GPU, what its heads gave is kept as it gave it (a quarter of the points), and not computed again.

    `where[l]` is the step that layer l reads, `middle[l]` the step after its attention. A step in `not_read` is no point
    that the model itself reads (the midpoint of a parallel block). `memory` (S, d) are the last points of the source that a
    target reads by cross attention, before the encoder's last norm.
    """

    view: View
    points: Float[Tensor, "p n d"]
    steps: tuple[Step, ...]
    tokens: list[str]
    ids: Int[Tensor, " n"]
    where: tuple[int, ...]
    middle: tuple[int, ...]
    text: str = ""
    logits: Float[Tensor, "n vocabulary"] | None = None
    not_read: frozenset[Step] = frozenset()
    facts: dict[str, Any] = field(default_factory=dict)
    memory: Float[Tensor, "s d"] | None = None
    _carried: dict[int, Carried] = field(default_factory=dict, init=False, repr=False)
    _outputs: dict[int, Float[Tensor, "n he"]] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        said, (p, n, d) = f" {cut(self.text)}" if self.text else "", self.points.shape
        return f"<Trace of {n} tokens{said} in {self.view.name}: {p} points × {n} tokens × width {d}>"

    def _repr_html_(self) -> str:
        p, n, d = self.points.shape
        sizes = {"points": f"{p} points × {n} tokens × width {d}", "logits": "no" if self.logits is None else "kept"}
        return card(self, f"Trace of {n} tokens", {"model": self.view.name} | sizes)

    def at(self, step: str | Step) -> Float[Tensor, "n d"]:
        """The cloud at a step or its label: `embed`, `L3.resid_mid`, `L3.resid_post`."""
        return self.points[self.index(step)]

    def index(self, step: str | Step) -> int:
        """Which of the steps this is; one that is not there is refused."""
        labels = [str(one) for one in self.steps]
        if str(step) not in labels:
            raise RheoscopeError(
                f"there is no step {str(step)!r}; type one of {', '.join(labels[:4])}, …, {labels[-1]}"
            )
        return labels.index(str(step))

    @property
    def provenance(self) -> dict[str, str]:
        """The text and what made the Trace, as results carry it."""
        return {"text": self.text} | {name: str(value) for name, value in self.facts.items()}

    def massive(self, times: float = 5.0) -> list[int]:
        """Tokens (sinks) longer than `times` the median length at any step; statistics of clouds leave them out and say so."""
        return (self.lengths > times * self.lengths.median(-1, keepdim=True).values).any(0).nonzero()[:, 0].tolist()

    @cached_property
    def lengths(self) -> Float[Tensor, "p n"]:
        """‖x‖ of every token after every step, in float32 or better."""
        return self.points.to(torch.promote_types(self.points.dtype, torch.float32)).norm(dim=-1)

    def ordinary(self, keep_massive: bool = False, least: int = 1) -> Bool[Tensor, " n"]:
        """Which tokens statistics of clouds are about: those that are not massive, or all; fewer than `least` are refused."""
        there = torch.ones(len(self), dtype=torch.bool, device=self.points.device)
        there[[] if keep_massive else self.massive()] = False
        if int(there.sum()) < least:
            raise RheoscopeError(
                f"this needs at least {least} tokens that are not massive, got {int(there.sum())}; type a longer text"
            )
        return there

    def read_by(self, layer: int) -> Float[Tensor, "n d"]:
        """The cloud that the attention of a layer reads."""
        self.view.heads_of(layer)
        return self.points[self.where[layer]]

    @torch.no_grad()
    def scores(self, layer: int, head: int) -> Float[Tensor, "n n"]:
        """Scores of one head before the mask, row = query; s_ij as the model computes it."""
        return self.view.heads_of(layer, head).scores(self.read_by(layer), head)

    @torch.no_grad()
    def weights(self, layer: int, head: int) -> Float[Tensor, "n n"]:
        """Attention weights of one head, row = query."""
        return self.view.heads_of(layer, head).weights(self.read_by(layer), head)

    @torch.no_grad()
    def displacement(self, layer: int, head: int) -> Float[Tensor, "n d"]:
        """Delta_h: what one head adds to every token."""
        self.view.heads_of(layer, head)
        return self.displacements(layer)[head]

    @torch.no_grad()
    def displacements(self, layer: int) -> Float[Tensor, "h n d"]:
        """Delta_h of all heads of a layer; with `bias(layer)` they close the stream."""
        return self.view.heads_of(layer).displacements(self.read_by(layer))

    @torch.no_grad()
    def bias(self, layer: int) -> Float[Tensor, "n d"]:
        """What the attention of a layer adds beside its heads."""
        return self.view.heads_of(layer).bias(self.read_by(layer))

    @torch.no_grad()
    def carried(self, layer: int) -> Carried:
        """What every head of a layer takes from the tokens, in factors; computed once, as several analyses need it."""
        if layer not in self._carried:
            heads, given = self.view.heads_of(layer), self.outputs(layer)
            self._carried[layer] = (
                heads.carried(self.view.as_read(self.read_by(layer))) if given is None else carried_of(heads, given)
            )
        return self._carried[layer]

    def with_outputs(self, outputs: Mapping[int, Float[Tensor, "n he"]]) -> "Trace":
        """The same, which knows what the heads of some layers gave, side by side: they need not be computed again."""
        self._outputs.update(outputs)
        return self

    def outputs(self, layer: int) -> Float[Tensor, "n he"] | None:
        """What the heads of a layer gave, side by side, where the forward pass kept it."""
        return self._outputs.get(layer)

    def parts(self, layer: int, rows: list[int] | None = None) -> tuple[Float[Tensor, "h r d"], Float[Tensor, "r d"]]:
        """What every head of a layer takes from the tokens, and all constants of its attention together.

        As `displacements` and `bias`, but the bias of values stands among the constants: it is the same for all tokens,
        and which head it belongs to is no property of the model.
        """
        return _apart(self.carried(layer), rows)

    @torch.no_grad()
    def statistics(self, layer: int) -> dict[str, Tensor]:
        """Entropy, first-token mass, top weight, distance (h, n) and received mass of all heads, no map ever held."""
        check_finite(points=self.read_by(layer))
        return self.view.heads_of(layer).statistics(self.read_by(layer))

    @torch.no_grad()
    def cross_scores(self, layer: int, head: int) -> Float[Tensor, "n s"]:
        """Scores of one head of cross attention, row = target token, column = source token."""
        return self.view.crossing_of(layer, head).scores(*self.across(layer), head)

    @torch.no_grad()
    def cross_weights(self, layer: int, head: int) -> Float[Tensor, "n s"]:
        """Weights of one head of cross attention, row = target token, column = source token."""
        return self.view.crossing_of(layer, head).weights(*self.across(layer), head)

    @torch.no_grad()
    def cross_displacements(self, layer: int) -> Float[Tensor, "h n d"]:
        """What every head of cross attention adds to every target token; with `cross_bias(layer)` they close the stream."""
        return self.view.crossing_of(layer).displacements(*self.across(layer))

    @torch.no_grad()
    def cross_bias(self, layer: int) -> Float[Tensor, "n d"]:
        """What the cross attention of a layer adds beside its heads."""
        return self.view.crossing_of(layer).bias(self.across(layer)[0])

    @torch.no_grad()
    def cross_parts(
        self, layer: int, rows: list[int] | None = None
    ) -> tuple[Float[Tensor, "h r d"], Float[Tensor, "r d"]]:
        """What every head of cross attention takes from the source, and all constants of cross attention together."""
        return _apart(self.view.crossing_of(layer).carried(*self.across(layer)), rows)

    def across(self, layer: int) -> tuple[Float[Tensor, "n d"], Float[Tensor, "s d"]]:
        """The two clouds that the cross attention of a layer reads: the target's and the source's."""
        self.view.crossing_of(layer)
        if self.memory is None:
            raise RheoscopeError("this Trace has no source; type model.trace((source, target)).target")
        return self.at(Step(layer, "resid_mid")), self.memory

    def save(self, directory: str | Path) -> Path:
        """Points, ids and labels to `directory` (safetensors + JSON); `Trace.open(directory, view)` reads them again."""
        from safetensors.torch import save_file

        directory = Path(directory)
        points, labels = directory / "trace.safetensors", directory / "trace.json"
        check_free(labels)
        if points.exists() and not labels.exists():
            raise RheoscopeError(f"{points} is there and was not written by Rheoscope; type another directory")
        arrays = {"points": self.points, "ids": self.ids, "logits": self.logits, "memory": self.memory}
        told = {
            "written_by": signature(),
            "steps": [str(step) for step in self.steps],
            "tokens": self.tokens,
            "text": self.text,
            "where": self.where,
            "middle": self.middle,
            "not_read": sorted(map(str, self.not_read)),
            "facts": self.facts,
        }
        kept = {name: x.contiguous() for name, x in arrays.items() if x is not None}
        write_file(points, lambda file: save_file(kept, file))
        write_file(labels, lambda file: file.write_text(json.dumps(told, indent=1, default=str)))
        return directory

    @staticmethod
    def open(directory: str | Path, view: View) -> "Trace":
        """A saved Trace, seen through the View of the model that made it; another model's View is refused."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        directory = Path(directory)
        try:
            told = json.loads((directory / "trace.json").read_text())
            arrays = load_file(directory / "trace.safetensors", device=str(view.embed.device))
            trace = Trace(
                view,
                arrays["points"],
                tuple(map(Step.parse, told["steps"])),
                told["tokens"],
                arrays["ids"].cpu(),
                tuple(told["where"]),
                tuple(told["middle"]),
                told["text"],
                arrays.get("logits"),
                frozenset(map(Step.parse, told["not_read"])),
                told["facts"],
                arrays.get("memory"),
            )
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            raise RheoscopeError(
                f"{directory} holds no saved Trace: {said}; type trace.save({str(directory)!r}) first"
            ) from error
        made_by, given = trace.facts.get("weights"), view.facts.get("weights")
        if made_by != given:
            raise RheoscopeError(
                f"this Trace was made by weights {made_by}, the View holds {given}; open the model that made it"
            )
        return trace


def _apart(made: Carried, rows: list[int] | None) -> tuple[Float[Tensor, "h r d"], Float[Tensor, "r d"]]:
    made = made if rows is None else made.at(rows)
    return made.displacements(), made.rest
