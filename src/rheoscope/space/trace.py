"""A text as points of E: every token after every half-layer, and the displacements by each head."""

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
from rheoscope.files import check_writable, signature, write_file
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.notebook_html import card, quote_start
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head_contributions import FactoredDisplacements
from rheoscope.space.head_outputs import displacements_from_outputs
from rheoscope.space.image_patches import Patches
from rheoscope.space.step import Step
from rheoscope.space.view import View


@dataclass(frozen=True, eq=False)
class Trace:
    """One text: `points` (P, N, d) after every step, `steps`, `tokens`, `ids`, `text`, and `logits` if requested.

    A Trace stores points, and displacements once an analysis has used them (half as much again). Scores, weights and
    displacements are recomputed from the View, so no tensor of size L x H x N x N ever exists. For a half-precision model on a
    GPU the head outputs are stored too (a quarter of the points) and not computed again.

    `input_steps[l]` is the step that layer l reads, `mid_steps[l]` the step after its attention. Steps in `unread_steps` are
    points that no part of the model reads alone (the midpoint of a parallel block, a mix of several streams). `memory` (S, d) holds
    the last points of the source for cross-attention, before the encoder's last norm, and `memory_tokens` its tokens. `source_trace`
    is the whole Trace of that source; a saved Trace has none. `features` is the input of a model that reads no text, such as the
    pixels of an image, and `patches` are the places of its tokens in the image.
    """

    view: View
    points: Float[Tensor, "p n d"]
    steps: tuple[Step, ...]
    tokens: list[str]
    ids: Int[Tensor, " n"]
    input_steps: tuple[int, ...]
    mid_steps: tuple[int, ...]
    text: str = ""
    logits: Float[Tensor, "n vocabulary"] | None = None
    unread_steps: frozenset[Step] = frozenset()
    facts: dict[str, Any] = field(default_factory=dict)
    memory: Float[Tensor, "s d"] | None = None
    features: Float[Tensor, "*size"] | None = None
    patches: Patches | None = None
    memory_tokens: list[str] | None = None
    source_trace: "Trace | None" = field(default=None, repr=False)
    _displacement_cache: dict[int, FactoredDisplacements] = field(default_factory=dict, init=False, repr=False)
    _outputs: dict[int, Float[Tensor, "n he"]] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        quoted_text, (p, n, d) = f" {quote_start(self.text)}" if self.text else "", self.points.shape
        return f"<Trace of {n} tokens{quoted_text} in {self.view.name}: {p} points × {n} tokens × width {d}>"

    def _repr_html_(self) -> str:
        p, n, d = self.points.shape
        sizes = {"points": f"{p} points × {n} tokens × width {d}", "logits": "no" if self.logits is None else "yes"}
        return card(self, f"Trace of {n} tokens", {"model": self.view.name} | sizes)

    @property
    def source(self) -> Any:
        """What the model reads to compute this Trace again: the text, its ids, or features."""
        return (self.text or self.ids) if self.features is None else self.features

    def points_at(self, step: str | Step) -> Float[Tensor, "n d"]:
        """The cloud at a step or its label: `embed`, `L3.resid_mid`, `L3.resid_post`."""
        return self.points[self.index(step)]

    def index(self, step: str | Step) -> int:
        """The index of a step; raises if there is no such step."""
        labels = [str(candidate) for candidate in self.steps]
        if str(step) not in labels:
            raise RheoscopeError(
                Message(
                    "there is no step {label!r}; expected one of {first}, …, {last}",
                    label=str(step),
                    first=", ".join(labels[:4]),
                    last=labels[-1],
                )
            )
        return labels.index(str(step))

    @property
    def provenance(self) -> dict[str, str]:
        """The text and the facts of the model, for the attributes of results."""
        return {"text": self.text} | {name: str(value) for name, value in self.facts.items()}

    def massive_tokens(self, factor: float = 5.0) -> list[int]:
        """Tokens (sinks) longer than `factor` times the median length at any step; cloud statistics leave them out."""
        return (self.norms > factor * self.norms.median(-1, keepdim=True).values).any(0).nonzero()[:, 0].tolist()

    @cached_property
    def norms(self) -> Float[Tensor, "p n"]:
        """‖x‖ of every token after every step, in float32 or better."""
        return self.points.to(torch.promote_types(self.points.dtype, torch.float32)).norm(dim=-1)

    def valid_mask(self, keep_massive: bool = False, min_tokens: int = 1) -> Bool[Tensor, " n"]:
        """The tokens of cloud statistics: all, or those that are not massive; raises for fewer than `min_tokens`."""
        mask = torch.ones(len(self), dtype=torch.bool, device=self.points.device)
        mask[[] if keep_massive else self.massive_tokens()] = False
        if int(mask.sum()) < min_tokens:
            raise too_few_tokens(min_tokens, int(mask.sum()))
        return mask

    def layer_input(self, layer: int) -> Float[Tensor, "n d"]:
        """The cloud that the attention of a layer reads."""
        self.view.heads_of(layer)
        return self.points[self.input_steps[layer]]

    @torch.no_grad()
    def scores(self, layer: int, head: int) -> Float[Tensor, "n n"]:
        """Scores of one head before the mask, row = query; s_ij as the model computes it."""
        return self.view.heads_of(layer, head).scores(self.layer_input(layer), head)

    @torch.no_grad()
    def weights(self, layer: int, head: int) -> Float[Tensor, "n n"]:
        """Attention weights of one head, row = query."""
        return self.view.heads_of(layer, head).weights(self.layer_input(layer), head)

    @torch.no_grad()
    def displacement(self, layer: int, head: int) -> Float[Tensor, "n d"]:
        """Delta_h: the displacement of every token by one head."""
        self.view.heads_of(layer, head)
        return self.displacements(layer)[head]

    @torch.no_grad()
    def displacements(self, layer: int) -> Float[Tensor, "h n d"]:
        """Delta_h of all heads of a layer; with `bias(layer)` they add up to the displacement by attention."""
        return self.view.heads_of(layer).displacements(self.layer_input(layer))

    @torch.no_grad()
    def bias(self, layer: int) -> Float[Tensor, "n d"]:
        """The displacement by attention of a layer outside its heads."""
        return self.view.heads_of(layer).bias(self.layer_input(layer))

    @torch.no_grad()
    def factored_displacements(self, layer: int) -> FactoredDisplacements:
        """The displacements of every head of a layer in factored form, cached for several analyses."""
        if layer not in self._displacement_cache:
            heads, outputs = self.view.heads_of(layer), self.outputs(layer)
            self._displacement_cache[layer] = (
                heads.factored_displacements(self.view.to_model_precision(self.layer_input(layer)))
                if outputs is None
                else displacements_from_outputs(heads, outputs)
            )
        return self._displacement_cache[layer]

    def with_outputs(self, outputs: Mapping[int, Float[Tensor, "n he"]]) -> "Trace":
        """The same Trace with the concatenated head outputs of some layers, which are then not computed again."""
        self._outputs.update(outputs)
        return self

    def outputs(self, layer: int) -> Float[Tensor, "n he"] | None:
        """The concatenated head outputs of a layer, if the forward pass recorded them."""
        return self._outputs.get(layer)

    def attention_parts(
        self, layer: int, positions: list[int] | None = None
    ) -> tuple[Float[Tensor, "h r d"], Float[Tensor, "r d"]]:
        """The displacements of every head of a layer, and all constants of its attention together.

        As `displacements` and `bias`, but the bias of values belongs to the constants. It is the same for all tokens, and its
        assignment to a head is not a property of the model.
        """
        return _displacements_and_constants(self.factored_displacements(layer), positions)

    @torch.no_grad()
    def statistics(self, layer: int) -> dict[str, Tensor]:
        """Entropy, first-token mass, top weight, distance (h, n) and received mass of all heads, without storing a map."""
        check_finite(points=self.layer_input(layer))
        return self.view.heads_of(layer).statistics(self.layer_input(layer))

    @torch.no_grad()
    def cross_scores(self, layer: int, head: int) -> Float[Tensor, "n s"]:
        """Scores of one cross-attention head, row = target token, column = source token."""
        return self.view.cross_heads_of(layer, head).scores(*self.cross_inputs(layer), head)

    @torch.no_grad()
    def cross_weights(self, layer: int, head: int) -> Float[Tensor, "n s"]:
        """Weights of one cross-attention head, row = target token, column = source token."""
        return self.view.cross_heads_of(layer, head).weights(*self.cross_inputs(layer), head)

    @torch.no_grad()
    def cross_displacements(self, layer: int) -> Float[Tensor, "h n d"]:
        """The displacements by every cross-attention head; with `cross_bias(layer)` they add up to the whole displacement."""
        return self.view.cross_heads_of(layer).displacements(*self.cross_inputs(layer))

    @torch.no_grad()
    def cross_bias(self, layer: int) -> Float[Tensor, "n d"]:
        """The displacement by cross-attention of a layer outside its heads."""
        return self.view.cross_heads_of(layer).bias(self.cross_inputs(layer)[0])

    @torch.no_grad()
    def cross_attention_parts(
        self, layer: int, positions: list[int] | None = None
    ) -> tuple[Float[Tensor, "h r d"], Float[Tensor, "r d"]]:
        """The displacements of every cross-attention head by the source, and all constants of cross-attention together."""
        return _displacements_and_constants(
            self.view.cross_heads_of(layer).factored_displacements(*self.cross_inputs(layer)), positions
        )

    def cross_inputs(self, layer: int) -> tuple[Float[Tensor, "n d"], Float[Tensor, "s d"]]:
        """The two clouds that the cross-attention of a layer reads: the target's and the source's."""
        self.view.cross_heads_of(layer)
        if self.memory is None:
            raise RheoscopeError(
                Message("this Trace has no source, expected the target of a pair"),
                Advice("model.trace((source, target)).target"),
            )
        return self.points_at(Step(layer, "resid_mid")), self.memory

    def save(self, directory: str | Path) -> Path:
        """Save points, ids and labels to `directory` (safetensors + JSON); `Trace.open(directory, view)` reads them."""
        from safetensors.torch import save_file

        directory = Path(directory)
        points_file, metadata_file = directory / "trace.safetensors", directory / "trace.json"
        check_writable(metadata_file)
        if points_file.exists() and not metadata_file.exists():
            raise RheoscopeError(
                Message(
                    "{path} exists and was not written by Rheoscope; choose another directory", path=str(points_file)
                )
            )
        arrays = {"points": self.points, "ids": self.ids, "logits": self.logits, "memory": self.memory}
        arrays |= {"features": self.features}
        arrays |= {} if self.patches is None else {"places": self.patches.places, "photo": self.patches.photo}
        metadata = {
            "written_by": signature(),
            "steps": [str(step) for step in self.steps],
            "tokens": self.tokens,
            "text": self.text,
            "where": self.input_steps,
            "middle": self.mid_steps,
            "not_read": sorted(map(str, self.unread_steps)),
            "facts": self.facts,
            "memory_tokens": self.memory_tokens,
        }
        saved_arrays = {name: x.contiguous() for name, x in arrays.items() if x is not None}
        write_file(points_file, lambda file: save_file(saved_arrays, file))
        write_file(metadata_file, lambda file: file.write_text(json.dumps(metadata, indent=1, default=str)))
        return directory

    @staticmethod
    def open(directory: str | Path, view: View) -> "Trace":
        """A saved Trace with the View of the model that traced it; raises for another model."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        directory = Path(directory)
        try:
            metadata = json.loads((directory / "trace.json").read_text())
            arrays = load_file(directory / "trace.safetensors", device=str(view.embed.device))
            trace = Trace(
                view,
                arrays["points"],
                tuple(map(Step.parse, metadata["steps"])),
                metadata["tokens"],
                arrays["ids"].cpu(),
                tuple(metadata["where"]),
                tuple(metadata["middle"]),
                metadata["text"],
                arrays.get("logits"),
                frozenset(map(Step.parse, metadata["not_read"])),
                metadata["facts"],
                arrays.get("memory"),
                arrays.get("features"),
                Patches(arrays["places"], arrays["photo"]) if "photo" in arrays else None,
                metadata.get("memory_tokens"),
            )
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise RheoscopeError(
                Message("{directory} holds no saved Trace: {reason}", directory=str(directory), reason=reason),
                Advice(f"trace.save({str(directory)!r})"),
            ) from error
        trace_weights, view_weights = trace.facts.get("weights"), view.facts.get("weights")
        if trace_weights != view_weights:
            raise RheoscopeError(
                Message(
                    "this Trace comes from weights {received}, but the View has weights {expected}",
                    received=str(trace_weights),
                    expected=str(view_weights),
                )
            )
        return trace


def too_few_tokens(minimum: int, received: int) -> RheoscopeError:
    """The error for a text with too few tokens that are not massive."""
    return RheoscopeError(
        Message(
            "this analysis needs at least {minimum} tokens that are not massive, got {received}; use a longer text",
            minimum=minimum,
            received=received,
        )
    )


def _displacements_and_constants(
    factored: FactoredDisplacements, positions: list[int] | None
) -> tuple[Float[Tensor, "h r d"], Float[Tensor, "r d"]]:
    factored = factored if positions is None else factored.select_tokens(positions)
    return factored.displacements(), factored.constants
