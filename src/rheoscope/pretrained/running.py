"""A pretrained model as a Model of Rheoscope: Hugging Face computes, plain hooks show the points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.pretrained.editing import editing
from rheoscope.pretrained.family.parts import Description
from rheoscope.pretrained.stream import changing, taps, watching
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Edit, Hook, Text
from rheoscope.space.trace import Trace
from rheoscope.space.view import View


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A Hugging Face model, its tokenizer, its description and its View. `rheoscope.load` makes one."""

    network: Any
    tokenizer: Any
    said: Description
    view: View

    def trace(self, text: Text | Sequence[Text], logits: bool = False) -> Any:
        """The text as points of E after every half-layer; a list of texts gives a list of Traces from one batch.

        `logits=True` keeps the logits (N, vocabulary) too, equal bit for bit to the untouched model's for one text.
        """
        many = isinstance(text, list | tuple) and bool(text) and not isinstance(text[0], Integral)
        batch: Any = text if many else [text]
        traces = self._traces(
            [self.ids(one) for one in batch], [one if isinstance(one, str) else "" for one in batch], logits
        )
        return traces if many else traces[0]

    @torch.no_grad()
    def _traces(self, batch: list[Tensor], texts: list[str], logits: bool) -> list[Trace]:
        ids, there = _padded(batch)
        steps = [tap.label for tap in taps(self.said)]
        device, dtype = self.said.embed.weight.device, self.said.embed.weight.dtype
        points = torch.empty(len(steps), *ids.shape, self.view.width, device=device, dtype=dtype)
        network = self.network if logits else self.network.base_model
        with watching(self.said, points):
            out = network(**_inputs(ids, there, device))
        kept = self._logits(out) if logits else [None] * len(batch)
        return [self._trace(points[:, b], one, texts[b], kept[b]) for b, one in enumerate(batch)]

    def _trace(self, points: Tensor, ids: Tensor, text: str, logits: Tensor | None) -> Trace:
        n, per_layer = len(ids), len(self.said.layers[0])
        steps = tuple(tap.label for tap in taps(self.said))
        where = tuple(per_layer * layer for layer in range(self.view.layers))
        return Trace(
            view=self.view,
            points=points[:, :n],
            steps=steps,
            tokens=self.words(ids),
            ids=ids,
            where=where,
            middle=tuple(at + 1 for at in where),
            text=text,
            logits=None if logits is None else logits[:n],
            not_read=frozenset(tap.label for tap in taps(self.said) if tap.added),
            facts=dict(self.view.facts),
        )

    def run(
        self,
        text: Text,
        edit: Mapping[tuple[int, int], Edit] | None = None,
        hooks: Mapping[str, Hook] | None = None,
    ) -> Tensor:
        """Logits (n, vocabulary), with heads edited and points changed; undone on exit, gradients allowed.

        `edit={(layer, head): f}`: f(q, k, v, mechanism) of that head (b, 1, n, ·) gives its output (b, 1, n, e).
        `hooks={"L3.resid_mid": g}`: the points (b, n, d) at that step become g(points).
        """
        ids = self.ids(text)[None]
        with editing(self.network, self.said, edit or {}), changing(self.said, hooks or {}):
            return self._logits(self.network(**_inputs(ids, None, self.said.embed.weight.device)))[0]

    def _logits(self, out: Any) -> Float[Tensor, "b n vocabulary"]:
        logits = getattr(out, "logits", None)
        if logits is None or logits.shape[-1] != len(self.view.embed):
            raise RheoscopeError(
                f"{type(self.network).__name__} has no unembedding, so there are no logits; type model.trace(text), "
                "or load the checkpoint of a language model"
            )
        return logits

    def ids(self, text: Text) -> Int[Tensor, " n"]:
        """Token ids as the tokenizer makes them (special tokens included), or the ids given; looked at once, here."""
        ids = (
            torch.tensor(self._tokenizer()(text)["input_ids"]).long() if isinstance(text, str) else _whole_numbers(text)
        )
        longest, vocabulary = self.view.facts.get("context"), len(self.view.embed)
        if not len(ids):
            raise RheoscopeError("the text has no tokens; type at least one word")
        if longest is not None and len(ids) > longest:
            raise RheoscopeError(
                f"the text has {len(ids)} tokens, the model reads at most {longest}; type a shorter text"
            )
        if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
            raise RheoscopeError(
                f"token ids lie in 0 to {vocabulary - 1}, got {int(ids.min())} to {int(ids.max())}; type ids of this model"
            )
        return ids

    def words(self, ids: Int[Tensor, " n"]) -> list[str]:
        """Each token as text; the number itself where there is no tokenizer."""
        if self.tokenizer is None:
            return [str(int(one)) for one in ids]
        return [self.tokenizer.decode([int(one)]) for one in ids]

    def _tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise RheoscopeError("this model has no tokenizer: type token ids, or rs.load(model, tokenizer=…)")
        return self.tokenizer


def _whole_numbers(text: Any) -> Int[Tensor, " n"]:
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


def _padded(batch: list[Tensor]) -> tuple[Int[Tensor, "b n"], Tensor | None]:
    """Texts side by side, padded on the right; None where nothing is padded, so that the fused kernel stays plain."""
    longest = max(len(ids) for ids in batch)
    ids = torch.stack([torch.nn.functional.pad(one, (0, longest - len(one))) for one in batch])
    there = torch.stack([torch.arange(longest) < len(one) for one in batch])
    return ids, None if bool(there.all()) else there.long()


def _inputs(ids: Tensor, there: Tensor | None, device: torch.device) -> dict[str, Any]:
    given = {"input_ids": ids.to(device), "use_cache": False}
    return given if there is None else given | {"attention_mask": there.to(device)}
