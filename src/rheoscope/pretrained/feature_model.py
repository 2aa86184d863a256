"""Pretrained models that read images or sounds: the tokens of their cloud are patches or frames."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from rheoscope.attention.memory import explain_out_of_memory
from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.pretrained.hf_model import Pretrained
from rheoscope.pretrained.network_inputs import (
    IMAGE_INPUT,
    SPECTRUM_INPUT,
    base_network,
    feature_arguments,
    feature_shape,
    main_input,
    patch_size,
)
from rheoscope.pretrained.packed_patches import is_packed, unpack_patches
from rheoscope.running.runner import allocate_points, make_traces
from rheoscope.running.stream import describe_value, observe_tap, record_points
from rheoscope.running.thread_hooks import apply_module_hooks
from rheoscope.shapes import RheoscopeError
from rheoscope.space.image_patches import Patches
from rheoscope.space.model import Edits, Hooks, check_same_weights
from rheoscope.space.model_parts import PlaceRotary
from rheoscope.space.trace import Trace


class _Stopped(Exception):
    """Ends a run at the first points."""


@dataclass(frozen=True, eq=False, repr=False)
class FeatureModel(Pretrained):
    """A Hugging Face model that reads features: the pixels of an image, or the spectrum or the samples of a sound.

    `tokenizer` is the image processor or the feature extractor that turns a photo or a recording into features, or None. There are
    no token ids: `trace.ids` counts the tokens, so that every patch is a type of its own.
    """

    @property
    def input_name(self) -> str:
        return main_input(self.network)

    @property
    def reads_images(self) -> bool:
        return self.input_name == IMAGE_INPUT

    def trace(self, text: Any, logits: bool = False, edit: Edits | None = None, hooks: Hooks | None = None) -> Any:
        """An image or a sound as points of E after every half-layer; a list of them returns Traces, computed as one batch.

        An image is a tensor of pixels (channels, height, width) as the network reads them, a file, or an image of Pillow. A sound is
        a tensor of features, or the path of an uncompressed WAV file with the sampling rate of the model.
        """
        if logits:
            self._refuse_logits()
        self.view.check_current()
        is_batch = isinstance(text, list | tuple) and bool(text)
        batch = [self.features(x) for x in (text if is_batch else [text])]
        if len({x.shape for x in batch}) > 1:
            raise RheoscopeError(Message("the inputs of a batch must have one size; trace them one by one"))
        self._check_size(batch[0])
        with (
            self.apply_edits(edit, hooks),
            explain_out_of_memory(Message("an input of this size"), use(device="cpu")),
        ):
            traces = self._trace_features(torch.stack(batch))
        if is_batch:
            return traces
        places = self._places(batch[0])
        patches = None if places is None else Patches(places, self._photo(batch[0]))
        return replace(traces[0], text=input_title(text, batch[0]), features=batch[0], patches=patches)

    def _check_size(self, features: Float[Tensor, "*size"]) -> None:
        """Raise for an image of another size, if patches are rotated by their places in an image of the network's own size."""
        if not any(isinstance(heads.mechanism.position, PlaceRotary) for heads in self.view.layer_heads):
            return
        expected = feature_shape(self.network)
        if tuple(features.shape) != expected:
            raise RheoscopeError(
                Message(
                    "{network} rotates patches by their places, so it opens for images of one size: expected {expected}, got {shape}",
                    network=type(self.network).__name__,
                    expected=str(expected),
                    shape=str(tuple(features.shape)),
                ),
                Advice("model.trace(Path('photo.png'))", "--image photo.png"),
            )

    @torch.no_grad()
    def _trace_features(self, features: Float[Tensor, "b *size"]) -> Any:
        features = self.on_device(features)
        ids = [torch.arange(self.n_tokens(features[0]))] * len(features)
        points = allocate_points(self.description, torch.stack(ids).to(self.device))
        with record_points(self.description, points):
            self.forward_points(features, None)
        tokens = self.token_labels(features[0])
        return make_traces(self.view, self.description, points, ids, [tokens] * len(ids), [""] * len(ids))

    def forward_points(self, ids: Float[Tensor, "b *size"], is_token: Bool[Tensor, "b n"] | None) -> None:
        """Run the network on features (b, …) up to the last point."""
        with self.eval_mode():
            base_network(self.network)(**feature_arguments(self.network, ids))

    def forward_logits(self, ids: Any, is_token: Any) -> Tensor:
        self._refuse_logits()

    def run(self, text: Any, edit: Edits | None = None, hooks: Hooks | None = None) -> Tensor:
        self._refuse_logits()

    def run_batch(self, *args: Any, **kwargs: Any) -> Tensor:
        self._refuse_logits()

    def gradients(self, text: Any, objective: Any) -> Any:
        self._refuse_logits()

    def _refuse_logits(self) -> NoReturn:
        raise RheoscopeError(
            Message(
                "{network} reads {input} and has no vocabulary, so it predicts no tokens",
                network=type(self.network).__name__,
                input=self.input_name,
            )
        )

    def ids(self, text: Any, encode: Any = None) -> Int[Tensor, " n"]:
        """Raises: there are no token ids."""
        if isinstance(text, Trace):
            check_same_weights(self, text)
            return text.ids.cpu()
        raise RheoscopeError(
            Message(
                "{network} reads {input}, not a text; got {received}",
                network=type(self.network).__name__,
                input=self.input_name,
                received=describe_value(text),
            ),
            self._input_advice,
        )

    def encode(self, text: str) -> list[int]:
        return self.ids(text).tolist()

    @property
    def _input_advice(self) -> Advice:
        return (
            Advice("model.trace(pixels)", "--image photo.png") if self.reads_images else Advice("model.trace(features)")
        )

    def token_strings(self, ids: Any) -> list[str]:
        return [str(int(position)) for position in ids]

    # Features

    def features(self, source: Any) -> Float[Tensor, "*size"]:
        """The features of one image or sound: of a tensor or an array, of a file, of an output of the processor, or of a Trace."""
        if isinstance(source, Trace) and source.features is not None:
            check_same_weights(self, source)
            return source.features
        if isinstance(source, Mapping) and self.input_name in source:
            source = unpack_patches(self.network, source) if is_packed(self.network) else source[self.input_name]
        if isinstance(source, str | Trace):
            self.ids(source)
        if isinstance(source, Path) or (self.reads_images and hasattr(source, "convert")):
            source = self._process(source)
        try:
            features = torch.as_tensor(source)
        except (TypeError, ValueError, RuntimeError):
            self.ids(source)
        features = features[0] if features.ndim == self._n_axes + 1 and len(features) == 1 else features
        if features.ndim != self._n_axes or not features.is_floating_point():
            raise RheoscopeError(
                Message(
                    "{input} must be a tensor of floating-point numbers with {n} axes, got {dtype} of shape {shape}",
                    input=self.input_name,
                    n=self._n_axes,
                    dtype=str(features.dtype),
                    shape=str(tuple(features.shape)),
                ),
                self._input_advice,
            )
        return features

    @property
    def _n_axes(self) -> int:
        """The axes of one input: channels, height and width; frequencies and frames; or samples."""
        return {IMAGE_INPUT: 3, SPECTRUM_INPUT: 2}.get(self.input_name, 1)

    def _process(self, source: Any) -> Any:
        """The pixels of a photo or the features of a sound file, by the processor of the model."""
        from rheoscope.pretrained.image_files import open_image, process_image
        from rheoscope.pretrained.sound_files import process_sound

        name = type(self.network).__name__
        if not self.reads_images:
            return process_sound(Path(source), self.tokenizer, self.input_name, name)
        image = open_image(source) if isinstance(source, Path) else source
        if not is_packed(self.network):
            return process_image(image, self.tokenizer, name)["pixel_values"][0]
        resized = image.resize(feature_shape(self.network)[:0:-1])  # width, height
        return unpack_patches(self.network, process_image(resized, self.tokenizer, name, do_resize=False))

    def on_device(self, features: Float[Tensor, "b *size"]) -> Float[Tensor, "b *size"]:
        """Features on the device and in the dtype of the weights."""
        weight = next(self.network.parameters())
        return features.to(weight.device, weight.dtype)

    # Tokens

    @torch.no_grad()
    def first_points(self, features: Float[Tensor, "b *size"]) -> Float[Tensor, "b n d"]:
        """The points that the first layer reads. The layers do not run."""
        received: list[Tensor] = []

        def stop(x: Tensor) -> None:
            received.append(x)
            raise _Stopped

        try:
            with apply_module_hooks([observe_tap(self.description.embed_tap, stop)]):
                self.forward_points(self.on_device(features), None)
        except _Stopped:
            pass
        except RheoscopeError:
            raise
        except Exception as error:  # a network may refuse features in any way
            raise RheoscopeError(
                Message(
                    "{network} cannot read {input} of shape {shape} ({reason})",
                    network=type(self.network).__name__,
                    input=self.input_name,
                    shape=str(tuple(features.shape[1:])),
                    reason=str(error).splitlines()[0],
                )
            ) from error
        return received[0].reshape(len(features), -1, received[0].shape[-1])

    def n_tokens(self, features: Float[Tensor, "*size"]) -> int:
        """The number of patches or frames, special tokens included."""
        size = tuple(features.shape)
        if size not in self._n_tokens_cache:
            self._n_tokens_cache[size] = self.first_points(features[None]).shape[1]
        return self._n_tokens_cache[size]

    @cached_property
    def _n_tokens_cache(self) -> dict[tuple[int, ...], int]:
        return {}

    def token_labels(self, features: Float[Tensor, "*size"]) -> list[str]:
        """`patch 3,5` is the patch in row 3 and column 5, `[CLS]` a special token before the patches; `frame 7` is a frame."""
        n, places = self.n_tokens(features), self._places(features)
        if places is None:
            return [f"{'token' if self.reads_images else 'frame'} {i}" for i in range(n)]
        special = iter(_special_labels(int((places[:, 0] < 0).sum())))
        return [next(special) if row < 0 else f"patch {row},{column}" for row, column in places.tolist()]

    def _places(self, features: Float[Tensor, "*size"]) -> Int[Tensor, "n 2"] | None:
        """The row and the column of every patch, -1 for special tokens; None if the tokens are no grid of patches."""
        size = tuple(features.shape)
        if size not in self._places_cache:
            self._places_cache[size] = self._find_places(size) if self.reads_images else None
        return self._places_cache[size]

    @cached_property
    def _places_cache(self) -> dict[tuple[int, ...], Int[Tensor, "n 2"] | None]:
        return {}

    def _photo(self, pixels: Float[Tensor, "c h w"]) -> UInt8[Tensor, "h w 3"]:
        """The image as a person sees it: pixels before the processor subtracted its mean, or stretched from 0 to 255."""
        mean, std = (getattr(self.tokenizer, name, None) for name in ("image_mean", "image_std"))
        if mean is None or std is None:
            photo = (pixels - pixels.min()) / (pixels.max() - pixels.min()).clamp(min=1e-12)
        else:
            photo = pixels * torch.tensor(std).to(pixels)[:, None, None] + torch.tensor(mean).to(pixels)[:, None, None]
        return (photo.clamp(0, 1) * 255).round().byte().movedim(0, -1).expand(-1, -1, 3).contiguous().cpu()

    def _find_places(self, size: tuple[int, ...]) -> Int[Tensor, "n 2"] | None:
        """The tokens that change with the pixels are patches. Noise in the rows of pixels with bit k in their number, and the same for
        columns, shows the number of the row and of the column of every patch."""
        sizes = patch_size(self.network.config)
        if sizes is None:
            return None
        axes = [torch.arange(n // patch) for n, patch in zip(size[1:], sizes, strict=True)]
        bits = [(axis[None] >> torch.arange(len(axis).bit_length())[:, None] & 1).bool() for axis in axes]
        rows, columns = (x.repeat_interleave(patch, 1) for x, patch in zip(bits, sizes, strict=True))
        noise = torch.randn(size, generator=torch.Generator().manual_seed(0))[:, : rows.shape[1], : columns.shape[1]]
        pixels = torch.zeros(2 + len(rows) + len(columns), *size)
        pixels[:, :, : noise.shape[1], : noise.shape[2]] = torch.cat(
            [torch.zeros_like(noise)[None], noise[None], noise * rows[:, None, :, None], noise * columns[:, None, None]]
        )
        points = self.first_points(pixels)
        changes = (points[1:] != points[0]).any(-1).cpu()
        is_patch, row_bits, column_bits = changes[0], changes[1 : 1 + len(rows)], changes[1 + len(rows) :]
        numbers = torch.stack([(x << torch.arange(len(x))[:, None]).sum(0) for x in (row_bits, column_bits)], -1)
        places = torch.where(is_patch[:, None], numbers, -1)
        expected = torch.cartesian_prod(*axes)
        is_grid = torch.equal(places[is_patch].unique(dim=0), expected) and int(is_patch.sum()) == len(expected)
        return places if is_grid else None


def input_title(source: Any, features: Tensor) -> str:
    """How an input is called in titles: by its file, else by its size."""
    if isinstance(source, Trace):
        return source.text
    name = source.name if isinstance(source, Path) else Path(str(getattr(source, "filename", ""))).name
    return name or " × ".join(map(str, features.shape))


def _special_labels(n: int) -> list[str]:
    """The names of n tokens that are no patches.

    >>> _special_labels(3)
    ['[CLS]', '[REG 1]', '[REG 2]']
    """
    return ["[CLS]", *(f"[REG {i}]" for i in range(1, n))][:n]
