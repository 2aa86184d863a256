"""A batch of texts: a sequence of Traces in one padded tensor."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.attention.mask import Mask, Padding
from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.device_transfer import start_cpu_copy
from rheoscope.space.head_contributions import FactoredDisplacements
from rheoscope.space.head_outputs import displacements_from_outputs
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.step import Step
from rheoscope.space.trace import Trace, too_few_tokens
from rheoscope.space.view import View


@dataclass(frozen=True, eq=False)
class Traces(Sequence[Trace]):
    """The texts of one forward pass: a sequence of Traces, and their tensors as a batch.

    `points` (b, p, n, d), `ids` and `is_token` (b, n) are padded on the right to the longest text. `is_token` is False at padding,
    and `lengths` (b) are the numbers of tokens. `traces[i]` is one text without padding, in the same memory; a slice is Traces
    again. `steps`, `input_steps`, `mid_steps` and `unread_steps` are the same for all texts. `memories`, `memory_tokens` and
    `source_traces` are the sources of the targets of an encoder-decoder, one for each text, as in `Trace`.

    >>> import rheoscope as rs
    >>> traces = rs.load().trace(["The keys to the cabinet", "A cat"])
    >>> len(traces), traces.lengths.tolist() == [len(trace) for trace in traces], len(traces[1:])
    (2, True, 1)
    """

    view: View
    points: Float[Tensor, "b p n d"]
    ids: Int[Tensor, "b n"]
    is_token: Bool[Tensor, "b n"]
    lengths: Int[Tensor, " b"]
    tokens: tuple[list[str], ...]
    texts: tuple[str, ...]
    steps: tuple[Step, ...]
    input_steps: tuple[int, ...]
    mid_steps: tuple[int, ...]
    logits: Float[Tensor, "b n vocabulary"] | None = None
    unread_steps: frozenset[Step] = frozenset()
    memories: tuple[Float[Tensor, "_ d"], ...] = ()
    memory_tokens: tuple[list[str], ...] = ()
    source_traces: tuple[Trace, ...] = ()
    _displacement_cache: dict[int, FactoredDisplacements] = field(default_factory=dict, init=False, repr=False)
    _outputs: dict[int, Float[Tensor, "b n he"]] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        b, p, n, d = self.points.shape
        return f"<Traces of {b} texts in {self.view.name}: {b} texts × {p} points × at most {n} tokens × width {d}>"

    @overload
    def __getitem__(self, index: int) -> Trace: ...

    @overload
    def __getitem__(self, index: slice) -> "Traces": ...

    def __getitem__(self, index: int | slice) -> "Trace | Traces":
        return self._traces[index] if isinstance(index, int) else self._slice(index)

    def _slice(self, index: slice) -> "Traces":
        if index.step is not None and index.step < 1:
            raise RheoscopeError(
                Message("a slice of Traces needs a positive step, got {received}", received=index.step),
                Advice("list(traces)[::-1]"),
            )
        sliced = replace(
            self,
            points=self.points[index],
            ids=self.ids[index],
            is_token=self.is_token[index],
            lengths=self.lengths[index],
            tokens=self.tokens[index],
            texts=self.texts[index],
            logits=None if self.logits is None else self.logits[index],
            memories=self.memories[index],
            memory_tokens=self.memory_tokens[index],
            source_traces=self.source_traces[index],
        )
        return sliced.with_outputs({layer: layer_outputs[index] for layer, layer_outputs in self._outputs.items()})

    def with_outputs(self, outputs: Mapping[int, Float[Tensor, "b n he"]]) -> "Traces":
        """The same Traces with the concatenated head outputs of some layers, which are then not computed again."""
        self._outputs.update(outputs)
        return self

    def with_sources(self, sources: "Sequence[Trace]") -> "Traces":
        """The same Traces as targets of an encoder-decoder, with one source for each."""
        linked = replace(
            self,
            memories=tuple(source.points[-1] for source in sources),
            memory_tokens=tuple(source.tokens for source in sources),
            source_traces=tuple(sources),
        )
        return linked.with_outputs(self._outputs)

    def outputs(self, layer: int) -> Float[Tensor, "b n he"] | None:
        """The concatenated head outputs of a layer, if the forward pass recorded them."""
        return self._outputs.get(layer)

    @staticmethod
    def from_trace(trace: Trace) -> "Traces":
        """One text as a batch of one, in the same memory.

        >>> import rheoscope as rs
        >>> len(Traces.from_trace(rs.load().trace("A cat")))
        1
        """
        is_token = torch.ones(1, len(trace), dtype=torch.bool, device=trace.points.device)
        return Traces(
            view=trace.view,
            points=trace.points[None],
            ids=trace.ids[None],
            is_token=is_token,
            lengths=is_token.sum(-1),
            tokens=(trace.tokens,),
            texts=(trace.text,),
            steps=trace.steps,
            input_steps=trace.input_steps,
            mid_steps=trace.mid_steps,
            logits=None if trace.logits is None else trace.logits[None],
            unread_steps=trace.unread_steps,
            memories=() if trace.memory is None else (trace.memory,),
            memory_tokens=() if trace.memory_tokens is None else (trace.memory_tokens,),
            source_traces=() if trace.source_trace is None else (trace.source_trace,),
        )

    @cached_property
    def norms(self) -> Float[Tensor, "b p n"]:
        """‖x‖ of every token after every step, in float32 or better; NaN at padding."""
        return torch.where(self.is_token[:, None], at_least_float32(self.points).norm(dim=-1), torch.nan)

    def massive_tokens(self, factor: float = 5.0) -> Bool[Tensor, "b n"]:
        """Tokens longer than `factor` times the median length of their text at any step; see `Trace.massive_tokens`."""
        return (self.norms > factor * self.norms.nanmedian(-1, keepdim=True).values).any(1)

    @cached_property
    def _nonmassive(self) -> Bool[Tensor, "b n"]:
        return self.is_token & ~self.massive_tokens()

    def prefetch(self) -> None:
        """Start copying the valid tokens and their number to the CPU without waiting."""
        _ = self._summary_on_cpu, self._nonmassive_on_cpu

    @cached_property
    def _nonmassive_on_cpu(self) -> Callable[[], Bool[Tensor, "b n"]]:
        return start_cpu_copy(self._nonmassive)

    @cached_property
    def _summary_on_cpu(self) -> Callable[[], Int[Tensor, "2"]]:
        all_finite = self.norms.isnan().eq(~self.is_token[:, None]).logical_and(~self.norms.isinf()).all()
        return start_cpu_copy(torch.stack([self._nonmassive.sum(-1).amin(), all_finite]))

    @cached_property
    def _min_counts(self) -> dict[bool, tuple[int, bool]]:
        """The fewest tokens of any text (with massive ones, or without), and whether all tokens are valid; one device sync."""
        fewest, is_finite = self._summary_on_cpu().tolist()
        if not is_finite:
            raise RheoscopeError(Message("the points of this text hold NaN or infinity"), use(dtype="float32"))
        counts = {False: fewest, True: self.min_length}
        return {keep_massive: (count, count == self.is_token.shape[-1]) for keep_massive, count in counts.items()}

    @property
    def min_length(self) -> int:
        """The number of tokens of the shortest text."""
        return min(map(len, self.tokens))

    def valid_mask(self, keep_massive: bool = False, min_tokens: int = 1) -> Bool[Tensor, "b n"]:
        """The tokens of cloud statistics for every text, as `Trace.valid_mask`."""
        valid = self.valid_tokens(keep_massive, min_tokens)
        return self.is_token if valid is None else valid

    def valid_mask_on_cpu(self, keep_massive: bool = False, min_tokens: int = 1) -> Bool[Tensor, "b n"]:
        """The same on the CPU, from the copy of `prefetch`."""
        valid = self.valid_tokens(keep_massive, min_tokens)
        if valid is None or valid is self.is_token:
            return (
                torch.arange(self.is_token.shape[-1])
                < torch.tensor([len(text_tokens) for text_tokens in self.tokens])[:, None]
            )
        return self._nonmassive_on_cpu()

    def valid_tokens(self, keep_massive: bool = False, min_tokens: int = 1) -> Bool[Tensor, "b n"] | None:
        """The same, or None if every token is valid (see `space/masked_means.py`).

        Raises for a text with fewer than `min_tokens` of them, and for points with NaN or infinity.
        """
        min_valid = self.min_valid_tokens(keep_massive)
        all_valid = self._min_counts[keep_massive][1]
        if min_valid < min_tokens:
            raise too_few_tokens(min_tokens, min_valid)
        return None if all_valid else self.is_token if keep_massive else self._nonmassive

    def min_valid_tokens(self, keep_massive: bool = False) -> int:
        """The smallest number of such tokens in any text."""
        return self._min_counts[keep_massive][0]

    @cached_property
    def is_unpadded(self) -> bool:
        """Whether all texts have the same length."""
        return self.min_length == self.is_token.shape[-1]

    def points_at(self, step_index: int) -> Float[Tensor, "b n d"]:
        """The clouds of all texts after one step, by its index."""
        return self.points[:, step_index]

    def layer_input(self, layer: int) -> Float[Tensor, "b n d"]:
        """The clouds that the attention of a layer reads."""
        self.view.heads_of(layer)
        return self.points[:, self.input_steps[layer]]

    @property
    def padding(self) -> Mask | None:
        """The padding mask; None if all texts have the same length."""
        return None if self.is_unpadded else Padding(self.is_token)

    def padding_for_layer(self, layer: int) -> Mask | None:
        """The padding mask for the heads of a layer; None under a causal mask, where padding is never visible."""
        return None if self.view.heads_of(layer).mechanism.mask.is_causal else self.padding

    @torch.no_grad()
    def factored_displacements(self, layer: int) -> FactoredDisplacements:
        """The displacements of every head of a layer in factored form, cached for several analyses."""
        if layer not in self._displacement_cache:
            heads, outputs = self.view.heads_of(layer), self.outputs(layer)
            self._displacement_cache[layer] = (
                heads.factored_displacements(
                    self.view.to_model_precision(self.layer_input(layer)), self.padding_for_layer(layer)
                )
                if outputs is None
                else displacements_from_outputs(heads, outputs)
            )
        return self._displacement_cache[layer]

    @torch.no_grad()
    def statistics(self, layer: int) -> dict[str, Float[Tensor, "b h n"]]:
        """Entropy, first-token mass, top weight, distance and received mass of all heads of a layer; 0 at padding.

        >>> import rheoscope as rs
        >>> rs.load().trace(["The keys to the cabinet", "A cat"]).statistics(0)["entropy"].shape[:2]
        torch.Size([2, 4])
        """
        self.min_valid_tokens(keep_massive=True)  # checks for NaN, once for all layers
        layer_input = self.view.to_model_precision(self.layer_input(layer))
        return self.view.heads_of(layer).statistics(layer_input, None if self.is_unpadded else self.lengths)

    @cached_property
    def _traces(self) -> tuple[Trace, ...]:
        """Created once, since a Trace caches what is computed from it."""
        return tuple(self._make_trace(index, n_tokens) for index, n_tokens in enumerate(self.lengths.tolist()))

    def _make_trace(self, index: int, n_tokens: int) -> Trace:
        trace = Trace(
            view=self.view,
            points=self.points[index, :, :n_tokens],
            steps=self.steps,
            tokens=self.tokens[index],
            ids=self.ids[index, :n_tokens],
            input_steps=self.input_steps,
            mid_steps=self.mid_steps,
            text=self.texts[index],
            logits=None if self.logits is None else self.logits[index, :n_tokens],
            unread_steps=self.unread_steps,
            facts=dict(self.view.facts),
            memory=self.memories[index] if self.memories else None,
            memory_tokens=self.memory_tokens[index] if self.memory_tokens else None,
            source_trace=self.source_traces[index] if self.source_traces else None,
        )
        return trace.with_outputs(
            {layer: layer_outputs[index, :n_tokens] for layer, layer_outputs in self._outputs.items()}
        )
