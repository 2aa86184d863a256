"""Many texts as one value: every text a Trace, all of them in one padded tensor."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.attention.mask import Mask, Padding
from rheoscope.shapes import RheoscopeError
from rheoscope.space.device_transfer import to_cpu_later
from rheoscope.space.head_contributions import Carried
from rheoscope.space.head_outputs import carried_of
from rheoscope.space.safe_arithmetic import exact
from rheoscope.space.step import Step
from rheoscope.space.trace import Trace
from rheoscope.space.view import View


@dataclass(frozen=True, eq=False)
class Traces(Sequence[Trace]):
    """Several texts that one forward pass saw: a sequence of Traces, and their tensors side by side.

    `points` (b, p, n, d) are padded on the right to the longest text, `ids` and `real` (b, n) too: `real` is True where a
    token stands, `lengths` (b) count them. `traces[i]` is one text without its padding, in the same memory; a slice is
    Traces again. `steps`, `where`, `middle` and `not_read` are those of every one of them.

    >>> import rheoscope as rs
    >>> traces = rs.load().trace(["The keys to the cabinet", "A cat"])
    >>> len(traces), traces.lengths.tolist() == [len(trace) for trace in traces], len(traces[1:])
    (2, True, 1)
    """

    view: View
    points: Float[Tensor, "b p n d"]
    ids: Int[Tensor, "b n"]
    real: Bool[Tensor, "b n"]
    lengths: Int[Tensor, " b"]
    tokens: tuple[list[str], ...]
    texts: tuple[str, ...]
    steps: tuple[Step, ...]
    where: tuple[int, ...]
    middle: tuple[int, ...]
    logits: Float[Tensor, "b n vocabulary"] | None = None
    not_read: frozenset[Step] = frozenset()
    _carried: dict[int, Carried] = field(default_factory=dict, init=False, repr=False)
    _outputs: dict[int, Float[Tensor, "b n he"]] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        b, p, n, d = self.points.shape
        return f"<Traces of {b} texts in {self.view.name}: {b} texts × {p} points × at most {n} tokens × width {d}>"

    @overload
    def __getitem__(self, at: int) -> Trace: ...

    @overload
    def __getitem__(self, at: slice) -> "Traces": ...

    def __getitem__(self, at: int | slice) -> "Trace | Traces":
        return self._each[at] if isinstance(at, int) else self._some(at)

    def _some(self, at: slice) -> "Traces":
        if at.step is not None and at.step < 1:
            raise RheoscopeError(f"a slice of Traces goes forward, got a step of {at.step}; type list(traces)[::-1]")
        some = replace(
            self,
            points=self.points[at],
            ids=self.ids[at],
            real=self.real[at],
            lengths=self.lengths[at],
            tokens=self.tokens[at],
            texts=self.texts[at],
            logits=None if self.logits is None else self.logits[at],
        )
        return some.with_outputs({layer: each[at] for layer, each in self._outputs.items()})

    def with_outputs(self, outputs: Mapping[int, Float[Tensor, "b n he"]]) -> "Traces":
        """The same, which knows what the heads of some layers gave, side by side: they need not be computed again."""
        self._outputs.update(outputs)
        return self

    def outputs(self, layer: int) -> Float[Tensor, "b n he"] | None:
        """What the heads of a layer gave, side by side, where the forward pass kept it."""
        return self._outputs.get(layer)

    @staticmethod
    def of(trace: Trace) -> "Traces":
        """One text as a batch of one, in the same memory: what asks many texts at once asks one too.

        >>> import rheoscope as rs
        >>> len(Traces.of(rs.load().trace("A cat")))
        1
        """
        real = torch.ones(1, len(trace), dtype=torch.bool, device=trace.points.device)
        return Traces(
            view=trace.view,
            points=trace.points[None],
            ids=trace.ids[None],
            real=real,
            lengths=real.sum(-1),
            tokens=(trace.tokens,),
            texts=(trace.text,),
            steps=trace.steps,
            where=trace.where,
            middle=trace.middle,
            logits=None if trace.logits is None else trace.logits[None],
            not_read=trace.not_read,
        )

    @cached_property
    def norms(self) -> Float[Tensor, "b p n"]:
        """‖x‖ of every token after every step, in float32 or better; NaN where a text is padded."""
        return torch.where(self.real[:, None], exact(self.points).norm(dim=-1), torch.nan)

    def massive(self, times: float = 5.0) -> Bool[Tensor, "b n"]:
        """Which tokens are longer than `times` the median length of their text at any step; see `Trace.massive`."""
        return (self.norms > times * self.norms.nanmedian(-1, keepdim=True).values).any(1)

    @cached_property
    def _ordinary(self) -> Bool[Tensor, "b n"]:
        return self.real & ~self.massive()

    def ask_ahead(self) -> None:
        """Have the device say which tokens count, and how many, without waiting: whoever asks later waits for that alone."""
        _ = self._said, self._ordinary_said

    @cached_property
    def _ordinary_said(self) -> Callable[[], Bool[Tensor, "b n"]]:
        return to_cpu_later(self._ordinary)

    @cached_property
    def _said(self) -> Callable[[], Int[Tensor, "2"]]:
        numbers = self.norms.isnan().eq(~self.real[:, None]).logical_and(~self.norms.isinf()).all()
        return to_cpu_later(torch.stack([self._ordinary.sum(-1).amin(), numbers]))

    @cached_property
    def _fewest(self) -> dict[bool, tuple[int, bool]]:
        """Of all texts, the fewest tokens (massive ones kept, or not), and whether none is left out: the device is asked once."""
        fewest, fine = self._said().tolist()
        if not fine:
            raise RheoscopeError("the points of this text hold NaN or infinity; type dtype='float32', or another text")
        counts = {False: fewest, True: self.shortest}
        return {keep: (count, count == self.real.shape[-1]) for keep, count in counts.items()}

    @property
    def shortest(self) -> int:
        """How many tokens the text has that has the fewest."""
        return min(map(len, self.tokens))

    def ordinary(self, keep_massive: bool = False, least: int = 1) -> Bool[Tensor, "b n"]:
        """Which tokens statistics of clouds are about, text by text, as `Trace.ordinary` says it of one."""
        found = self.counted(keep_massive, least)
        return self.real if found is None else found

    def ordinary_on_cpu(self, keep_massive: bool = False, least: int = 1) -> Bool[Tensor, "b n"]:
        """The same on the CPU, where a device said it ahead: nobody waits for more than that."""
        found = self.counted(keep_massive, least)
        if found is None or found is self.real:
            return torch.arange(self.real.shape[-1]) < torch.tensor([len(one) for one in self.tokens])[:, None]
        return self._ordinary_said()

    def counted(self, keep_massive: bool = False, least: int = 1) -> Bool[Tensor, "b n"] | None:
        """The same, None where every token counts (see `space/masked_means.py`).

        A text with fewer than `least` of them is refused, and so are points that are not numbers.
        """
        fewest = self.fewest(keep_massive)
        every = self._fewest[keep_massive][1]
        if fewest < least:
            raise RheoscopeError(
                f"this needs at least {least} tokens that are not massive, got {fewest}; type a longer text"
            )
        return None if every else self.real if keep_massive else self._ordinary

    def fewest(self, keep_massive: bool = False) -> int:
        """How many such tokens the text has that has the fewest."""
        return self._fewest[keep_massive][0]

    @cached_property
    def unpadded(self) -> bool:
        """Whether all texts are of one length."""
        return self.shortest == self.real.shape[-1]

    def at(self, step: int) -> Float[Tensor, "b n d"]:
        """The clouds of all texts after one step, by its number."""
        return self.points[:, step]

    def read_by(self, layer: int) -> Float[Tensor, "b n d"]:
        """The clouds that the attention of a layer reads."""
        self.view.heads_of(layer)
        return self.points[:, self.where[layer]]

    @property
    def padding(self) -> Mask | None:
        """What no token of a text sees; None where texts are of one length."""
        return None if self.unpadded else Padding(self.real)

    def unseen(self, layer: int) -> Mask | None:
        """What heads must not see besides: padding, unless a token never sees what comes after it."""
        return None if self.view.heads_of(layer).mechanism.mask.is_causal else self.padding

    @torch.no_grad()
    def carried(self, layer: int) -> Carried:
        """What every head of a layer takes from the tokens, in factors; computed once, as several analyses need it."""
        if layer not in self._carried:
            heads, given = self.view.heads_of(layer), self.outputs(layer)
            self._carried[layer] = (
                heads.carried(self.view.as_read(self.read_by(layer)), self.unseen(layer))
                if given is None
                else carried_of(heads, given)
            )
        return self._carried[layer]

    @torch.no_grad()
    def statistics(self, layer: int) -> dict[str, Float[Tensor, "b h n"]]:
        """Entropy, first-token mass, top weight, distance and received mass of all heads of a layer; 0 beyond the end of a text.

        >>> import rheoscope as rs
        >>> rs.load().trace(["The keys to the cabinet", "A cat"]).statistics(0)["entropy"].shape[:2]
        torch.Size([2, 4])
        """
        self.fewest(keep_massive=True)  # refuses what is no number, once for all layers
        read = self.view.as_read(self.read_by(layer))
        return self.view.heads_of(layer).statistics(read, None if self.unpadded else self.lengths)

    @cached_property
    def _each(self) -> tuple[Trace, ...]:
        """Made once, since a Trace keeps what was computed from it."""
        return tuple(self._one(at, n) for at, n in enumerate(self.lengths.tolist()))

    def _one(self, at: int, n: int) -> Trace:
        own = Trace(
            view=self.view,
            points=self.points[at, :, :n],
            steps=self.steps,
            tokens=self.tokens[at],
            ids=self.ids[at, :n],
            where=self.where,
            middle=self.middle,
            text=self.texts[at],
            logits=None if self.logits is None else self.logits[at, :n],
            not_read=self.not_read,
            facts=dict(self.view.facts),
        )
        return own.with_outputs({layer: each[at, :n] for layer, each in self._outputs.items()})
