"""A model that runs: texts become points by plain hooks, whoever computes; only how to call it differs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any, overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rheoscope.attention.memory import fitting
from rheoscope.notebook_html import card, counted
from rheoscope.running.certificate import Certificate
from rheoscope.running.head_edits import for_one_run
from rheoscope.running.stream import (
    Description,
    changing,
    check_given,
    gathering,
    hearing,
    keeping,
    resuming,
    taps,
    watching,
)
from rheoscope.running.thread_hooks import asking
from rheoscope.shapes import RheoscopeError
from rheoscope.space.device_transfer import to_device
from rheoscope.space.model import Edits, Hooks, Text, Texts
from rheoscope.space.safe_arithmetic import exact
from rheoscope.space.token_text import alone, as_bytes, in_a_text, whole_text
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View


@dataclass(frozen=True, eq=False)
class Running(ABC):
    """A network, its tokenizer (or None), its description and its View. `rheoscope.load` makes one.

    A maker says how to call the network, how its heads are edited, how a string becomes ids and how an id becomes a string.
    Everything else is the same for all of them.
    """

    network: Any
    tokenizer: Any
    description: Description
    view: View

    def __repr__(self) -> str:
        return f"<Model {self.view.in_words}, {counted(self.parameter_count)} parameters>"

    def _repr_html_(self) -> str:
        told = self.view.in_numbers | {"parameters": counted(self.parameter_count)}
        return card(self, self.view.name, told | {"certificate": self.view.facts.get("certificate", "none")})

    @property
    def parameter_count(self) -> int:
        """Of the network, tied ones once."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    @abstractmethod
    def call(self, ids: Any, real: Bool[Tensor, "b n"] | None) -> Tensor:
        """Logits (b, n, vocabulary), by the network itself, of ids (b, n), or of those of a source and of a target.

        `real` is False where a text (of a pair, the source) is padded, None where nothing is.
        """

    @abstractmethod
    def pass_through(self, ids: Any, real: Bool[Tensor, "b n"] | None) -> None:
        """Every point of the stream is computed, and no logits."""

    @abstractmethod
    def editing(self, edit: Edits) -> AbstractContextManager[None]:
        """Inside, heads (layer, head) or whole layers are computed by their edits; undone on exit."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Ids of a string, special tokens as the tokenizer adds them."""

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of several strings."""
        return [self.encode(text) for text in texts]

    @abstractmethod
    def decode(self, token: int) -> str:
        """One id as text, as the tokenizer gives it."""

    @abstractmethod
    def piece(self, token: int) -> str:
        """The name of one id in the vocabulary."""

    @overload
    def trace(  # type: ignore[overload-overlap]  # a string is a sequence of strings; here it is one text
        self, text: Text, logits: bool = False, edit: Edits | None = None, hooks: Hooks | None = None
    ) -> Trace: ...

    @overload
    def trace(
        self, text: Texts, logits: bool = False, edit: Edits | None = None, hooks: Hooks | None = None
    ) -> Traces: ...

    def trace(
        self, text: Text | Texts, logits: bool = False, edit: Edits | None = None, hooks: Hooks | None = None
    ) -> Trace | Traces:
        """The text as points of E after every half-layer; a list of texts gives Traces, computed as one batch.

        `logits=True` keeps the logits (N, vocabulary) too, equal bit for bit to the untouched model's for one text. With
        `edit` and `hooks`, as `run` takes them, the points are those of the changed model; what a Trace recomputes (weights,
        displacements) is by the View, which no edit changes.
        """
        many = isinstance(text, list | tuple) and bool(text) and not isinstance(text[0], Integral)
        batch: Any = text if many else [text]
        ids, texts = [self.ids(one) for one in batch], [one if isinstance(one, str) else "" for one in batch]
        with (
            self.changed(edit, hooks),
            fitting("a text of this length", "a shorter text, fewer texts, or device='cpu'"),
        ):
            traces = self._traces(ids, texts, logits, heard=self.view.reads_half and not edit)
        return traces if many else traces[0]

    @torch.no_grad()
    def _traces(self, batch: list[Tensor], texts: list[str], logits: bool, heard: bool) -> Traces:
        ids, real = padded(batch, self.device)
        points, outputs, found = room(self.description, ids), dict[int, Tensor](), None
        with watching(self.description, points), hearing(self.description, outputs) if heard else nullcontext():
            if logits:
                found = self.call(ids, real)
            else:
                self.pass_through(ids, real)
        words = [self.words_in_text(one) for one in batch]
        return traced(self.view, self.description, points, batch, words, texts, found).with_outputs(outputs)

    def run(
        self,
        text: Text,
        edit: Edits | None = None,
        hooks: Hooks | None = None,
    ) -> Tensor:
        """Logits (n, vocabulary), with heads edited and points changed; undone on exit, gradients allowed.

        `edit={(layer, head): f}`: f(q, k, v, mechanism) of that head (b, 1, n, ·) gives its output (b, 1, n, e).
        `edit={layer: f}`: f(q, k, v, mechanism, out) of all heads of that layer gives their outputs (b, h, n, e); a `Rewrite`
        reads the points of the layer too, and may write beside the heads.
        `hooks={"L3.resid_mid": g}`: the points (b, n, d) at that step become g(points).
        All of them are given float32 or better; what they give is rounded to the model's dtype once.
        """
        ids = self.ids(text)[None].to(self.device)
        with self.changed(edit, hooks):
            return self.call(ids, None)[0]

    @contextmanager
    def changed(self, edit: Edits | None, hooks: Hooks | None) -> Iterator[None]:
        """Inside, and in this thread alone, heads are edited and points changed."""
        run = for_one_run(self.description, edit or {}, hooks or {})
        with self.editing(run.edits), changing(self.description, run.hooks), asking(run.looks):
            yield

    def run_batch(
        self,
        ids: Int[Tensor, "b n"],
        edit: Edits | None = None,
        hooks: Hooks | None = None,
        given: Sequence[Any] = (),
    ) -> Float[Tensor, "b n vocabulary"]:
        """Logits of texts of one length, side by side, with heads edited and points changed as in `run`.

        `given=model.passed(ids)[:5]`: the first five blocks give what they gave there and are not computed again, which is exact
        as long as nothing changes before the sixth.
        """
        self._refuse_pairs()
        layers = [at if isinstance(at, int) else at[0] for at in edit or {}]
        check_given(self.description, given, layers, hooks or {})
        with self.changed(edit, hooks), resuming(self.description, given):
            return self.call(ids.to(self.device), None)

    @torch.no_grad()
    def passed(self, ids: Int[Tensor, "b n"]) -> list[Any]:
        """What every block gives for texts of one length, as the network itself passes it on: see `run_batch`."""
        self._refuse_pairs()
        kept: list[Any] = []
        with keeping(self.description, kept):
            self.pass_through(ids.to(self.device), None)
        return kept

    def _refuse_pairs(self) -> None:
        if self.view.crossing:
            raise RheoscopeError("this model reads pairs of texts, one at a time; type model.run((source, target))")

    def gradients(self, text: Text, of: Callable[[Tensor], Tensor]) -> tuple[Tensor, dict[str, Float[Tensor, "n d"]]]:
        """A scalar `of` the logits (n, vocabulary), and its gradient at every step of the stream that the model reads.

        One forward and one backward pass; weights take no part, so frozen ones will do.
        """
        seen: dict[str, Tensor] = {}
        with torch.enable_grad(), gathering(self.description, seen):
            value = of(self.call(self.ids(text)[None].to(self.device), None)[0])
        if not isinstance(value, Tensor) or value.ndim or not value.requires_grad:
            raise RheoscopeError(
                "a gradient is of one number that depends on the logits; type a function of logits to a scalar"
            )
        points = {str(tap.step): seen[str(tap.step)] for tap in taps(self.description) if not tap.added}
        found = torch.autograd.grad(value, list(points.values()), materialize_grads=True)
        return value.detach(), {
            label: exact(g).reshape(-1, g.shape[-1]) for label, g in zip(points, found, strict=True)
        }

    def proved(self, certificate: Certificate) -> "Running":
        """The same model, with its certificate among its facts."""
        return replace(self, view=self.view.proved(certificate))

    @property
    def device(self) -> torch.device:
        return self.description.embed.weight.device

    def ids(self, text: Text, encode: Callable[[str], list[int]] | None = None) -> Int[Tensor, " n"]:
        """Token ids as the tokenizer makes them (special tokens included), or the ids given; looked at once, here."""
        if isinstance(text, str) and self.tokenizer is None:
            raise RheoscopeError(
                "this model has no tokenizer, so it reads no text; put its tokenizer.json beside its weights (in Python, "
                "model.trace([1, 2, 3]) reads token ids, and rs.load(model, tokenizer=…) takes one)"
            )
        ids = torch.tensor((encode or self.encode)(text)).long() if isinstance(text, str) else whole_numbers(text)
        longest, vocabulary = self.view.context, len(self.view.embed)
        if not len(ids) or (isinstance(text, str) and not text):  # a tokenizer may put a start token before nothing
            raise RheoscopeError("the text has no tokens; type at least one word")
        if longest is not None and len(ids) > longest:
            raise RheoscopeError(
                f"the text has {len(ids)} tokens, the model reads at most {longest}; type a shorter text"
            )
        numbers = ids.tolist()  # so few that torch's threads would cost more than they do
        least, most = min(numbers), max(numbers)
        if least < 0 or most >= vocabulary:
            raise RheoscopeError(
                f"token ids lie in 0 to {vocabulary - 1}, got {least} to {most}; type ids of this model"
            )
        return ids

    def words(self, ids: Int[Tensor, " n"] | Sequence[int]) -> list[str]:
        """Each token as text, by itself; the number itself where there is no tokenizer.

        A space that a token begins with is part of it. Bytes that are no whole character are written as `⟨e4⟩`.
        """
        if self.tokenizer is None:
            return [str(one) for one in _numbers(ids)]
        return [alone(self.bytes_of(one)) for one in _numbers(ids)]

    def words_in_text(self, ids: Int[Tensor, " n"] | Sequence[int]) -> list[str]:
        """Each token as text, where they follow each other: a character of several tokens stands in the last of them."""
        if self.tokenizer is None:
            return self.words(ids)
        numbers = _numbers(ids)
        told = [one for one in map(self._whole.__getitem__, numbers) if one is not None]
        return told if len(told) == len(numbers) else in_a_text([self.bytes_of(one) for one in numbers])

    def bytes_of(self, token: int) -> bytes:
        """What one id stands for, in UTF-8; the tokenizer is asked once."""
        if token not in self._bytes:
            self._bytes[token] = as_bytes(self.piece(token), self.decode(token))
        return self._bytes[token]

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        return {}

    @cached_property
    def _whole(self) -> "_Whole":
        return _Whole(self.bytes_of)


class _Whole(dict[int, str | None]):
    """Tokens as text, None for those that are no whole characters or nothing; each is looked at once."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        super().__init__()
        self.bytes_of = bytes_of

    def __missing__(self, token: int) -> str | None:
        self[token] = whole_text(self.bytes_of(token)) or None
        return self[token]


def _numbers(ids: Int[Tensor, " n"] | Sequence[int]) -> list[int]:
    return ids.tolist() if isinstance(ids, Tensor) else [int(one) for one in ids]


def whole_numbers(text: Any) -> Int[Tensor, " n"]:
    """Ids from a list, an array or a tensor of whole numbers; anything else is refused."""
    try:
        ids = torch.as_tensor(text)
    except (TypeError, ValueError, RuntimeError):
        ids = None
    if ids is not None and ids.ndim == 1 and not len(ids):
        return ids.long()
    if ids is None or ids.ndim != 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype is torch.bool:
        came = type(text).__name__ if ids is None else f"{ids.dtype} of shape {tuple(ids.shape)}"
        raise RheoscopeError(f"one text is a string or a list of whole numbers, got {came}; type a string or [1, 2, 3]")
    return ids.long().cpu()


def room(description: Description, ids: Int[Tensor, "b n"]) -> Float[Tensor, "b p n d"]:
    """Where the points of a batch will stand, in float32 or better: the clouds of all texts after one step side by side, as
    the model makes them and as kernels read them."""
    width, dtype = description.blocks[0].W_O.shape[-1], description.blocks[0].W_O.dtype
    return torch.empty(len(taps(description)), *ids.shape, width, device=ids.device, dtype=dtype).transpose(0, 1)


def traced(
    view: View,
    description: Description,
    points: Float[Tensor, "b p n d"],
    batch: Sequence[Tensor],
    tokens: Sequence[list[str]],
    texts: Sequence[str],
    logits: Float[Tensor, "b n vocabulary"] | None = None,
) -> Traces:
    """What one forward pass saw of a batch of texts."""
    ids, _ = padded(batch)
    # without waiting: else the whole forward pass would be waited for
    lengths = to_device(torch.tensor([len(one) for one in batch]), points.device)
    where = tuple(len(description.layers[0]) * layer for layer in range(view.layers))
    return Traces(
        view=view,
        points=points,
        ids=ids,
        real=torch.arange(ids.shape[1], device=points.device) < lengths[:, None],
        lengths=lengths,
        tokens=tuple(tokens),
        texts=tuple(texts),
        steps=tuple(tap.step for tap in taps(description)),
        where=where,
        middle=tuple(at + 1 for at in where),
        logits=logits,
        not_read=frozenset(tap.step for tap in taps(description) if tap.added),
    )


def padded(
    batch: Sequence[Tensor], device: torch.device | None = None
) -> tuple[Int[Tensor, "b n"], Bool[Tensor, "b n"] | None]:
    """Texts side by side, padded on the right; None where nothing is padded, so that the fused kernel stays plain."""
    ids, lengths = pad_sequence(list(batch), batch_first=True), [len(one) for one in batch]
    if min(lengths) == ids.shape[1]:
        return to_device(ids, device), None
    return to_device(ids, device), to_device(torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None], device)
