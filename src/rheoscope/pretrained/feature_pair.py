"""Encoder–decoders whose source is a sound or an image: frames or patches and the tokens of a text as two linked clouds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.pretrained.feature_model import FeatureModel, input_title
from rheoscope.pretrained.hf_model import LOGITS, PretrainedPair
from rheoscope.pretrained.network_inputs import main_input
from rheoscope.running.encoder_decoder import LinkedTraces
from rheoscope.running.runner import RunnableModel, make_traces
from rheoscope.shapes import RheoscopeError
from rheoscope.space.traces import Traces
from rheoscope.space.view import View

FeatureIds = tuple[Float[Tensor, "b *size"], Int[Tensor, "b t"]]
"""Features of sources and ids of targets."""


@dataclass(frozen=True, eq=False, repr=False)
class FeaturePair(PretrainedPair):
    """A Hugging Face encoder-decoder such as Whisper: its encoder reads features, its decoder a text. `rheoscope.load` returns one.

    A source is what the encoder reads: a tensor, a file, or the output of the feature extractor. A target is a string or ids.
    """

    extractor: Any = None

    @cached_property
    def source_side(self) -> FeatureModel:
        """The encoder as a model of features."""
        return FeatureModel(self.network.get_encoder(), self.extractor, self.source_description, self.encoder)

    def encoder_model(self, view: View) -> RunnableModel:
        return replace(self.source_side, view=view)

    def source_ids(self, source: Any) -> Float[Tensor, "*size"]:
        return self.source_side.features(source)

    def pad_sources(self, sources: Sequence[Tensor]) -> tuple[Float[Tensor, "b *size"], None]:
        if len({x.shape for x in sources}) > 1:
            raise RheoscopeError(Message("the inputs of a batch must have one size; trace them one by one"))
        return self.source_side.on_device(torch.stack(list(sources))), None

    def source_tokens(self, sources: Float[Tensor, "b *size"]) -> Int[Tensor, "b s"]:
        numbers = torch.arange(self.source_side.n_tokens(sources[0]), device=self.device)
        return numbers.expand(len(sources), -1)

    def source_traces(self, points: Tensor, sources: Sequence[Tensor], texts: Sequence[Any]) -> Traces:
        ids = list(self.source_tokens(torch.stack(list(sources))).cpu())
        labels = self.source_side.token_labels(sources[0])
        return make_traces(self.encoder, self.source_description, points, ids, [labels] * len(ids), [""] * len(ids))

    def _trace_pairs(self, batch: list[tuple[Tensor, Tensor]], texts: list[Any], logits: bool) -> list[LinkedTraces]:
        linked = super()._trace_pairs(batch, texts, logits)
        return [
            replace(traces, source=replace(traces.source, features=features, text=input_title(text[0], features)))
            for traces, (features, _), text in zip(linked, batch, texts, strict=True)
        ]

    def forward_logits(self, ids: FeatureIds, is_token: Bool[Tensor, "b s"] | None) -> Float[Tensor, "b t vocabulary"]:  # type: ignore[override]
        with self.eval_mode():
            outputs = self.network(**self._inputs(ids))
        return next(outputs[name] for name in LOGITS if name in outputs)

    def forward_points(self, ids: FeatureIds, is_token: Bool[Tensor, "b s"] | None) -> None:  # type: ignore[override]
        with self.eval_mode():
            self.network.base_model(**self._inputs(ids))

    def forward_source(self, ids: Tensor, is_token: Bool[Tensor, "b s"] | None) -> None:
        self.source_side.forward_points(ids, is_token)

    def greedy_targets(self, sources: Sequence[Tensor], max_tokens: int) -> list[Int[Tensor, " _"]]:
        raise RheoscopeError(
            Message(
                "{model} reads {input}, so its card needs a target for each source",
                model=self.view.name,
                input=self._input,
            ),
            Advice("rs.card(model, [(Path('a.wav'), 'its text'), …])", "--audio DIR"),
        )

    @property
    def _input(self) -> str:
        return main_input(self.network)

    def _inputs(self, ids: FeatureIds) -> dict[str, Any]:
        return {self._input: ids[0], "decoder_input_ids": ids[1], "use_cache": False}


def extractor_of(processor: Any) -> Any:
    """The part of a processor that turns a sound or an image into features; None if there is none."""
    names = ("feature_extractor", "image_processor")
    return next((getattr(processor, name) for name in names if hasattr(processor, name)), None)
