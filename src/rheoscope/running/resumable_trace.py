"""A trace that stores the points of each finished layer in a folder, so that an interrupted run continues at the next layer."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.files import check_writable, signature, write_file
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.running.runner import RunnableModel, allocate_points, make_traces, pad_batch, text_string
from rheoscope.running.stream import ModelDescription, record_points, reuse_block_outputs
from rheoscope.running.thread_hooks import ModuleHook, apply_module_hooks
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Text
from rheoscope.space.traces import Traces

Points = Float[Tensor, "b p n d"]


@torch.no_grad()
def resumable_trace(model: RunnableModel, texts: Sequence[Text], folder: str | Path, logits: bool = False) -> Traces:
    """The traces of several texts, with the points of every finished layer stored in a folder.

    **Question** How does a run over a large model continue after an interruption? The same call with the same folder reads the
    finished layers and computes the others.

    **Formula** `model.trace(texts, logits)`, bit for bit.

    **Returns** The Traces. The folder keeps one file per layer; delete it when it is not needed any more.

    **Settings** `texts` are a list, traced as one batch, so that a streamed model reads each block once. `folder` holds the
    layers of one model and one list of texts, and is created if necessary. `logits=True` also computes the logits.

    **Laws** A folder of another model or of other texts raises an error.

    **See also** `rs.load(path, stream=True)` for models that do not fit into memory.

    >>> import rheoscope as rs, tempfile, os
    >>> folder = tempfile.mkdtemp()
    >>> traces = rs.resumable_trace(rs.load(), ["The keys to the cabinet", "A cat"], folder)
    >>> len(traces), sorted(os.listdir(folder))[0]
    (2, 'layer_0000.safetensors')
    """
    if isinstance(texts, str) or not len(texts):
        raise RheoscopeError(
            Message("texts must be a list with at least one text, got {received!r}", received=texts),
            Advice("rs.resumable_trace(model, ['The keys to the cabinet'], folder)"),
        )
    model.view.check_current()
    batch = [model.ids(text) for text in texts]
    ids, is_token = pad_batch(batch, model.device)
    layers, points = StoredLayers.open(Path(folder), model, batch), allocate_points(model.description, ids)
    compute = partial(model.forward_logits, ids, is_token) if logits else partial(model.forward_points, ids, is_token)
    batch_logits = _run(model.description, compute, points, layers, model.view.dtype)
    tokens, strings = (
        [model.token_strings_in_text(text_ids) for text_ids in batch],
        [text_string(text) for text in texts],
    )
    return make_traces(model.view, model.description, points, batch, tokens, strings, batch_logits if logits else None)


def _run(
    description: ModelDescription,
    compute: Callable[[], Any],
    points: Points,
    layers: "StoredLayers",
    dtype: torch.dtype,
) -> Any:
    """The forward pass from the first layer that is not stored. Its points, and those of stored layers, are in `points`."""
    stored_points = [layers.read(layer).to(points) for layer in range(layers.n_finished)]
    last_output = [stored_points[-1][:, -1].to(dtype)] if stored_points else []
    with (
        record_points(description, points),
        save_layers(description, points, layers),
        reuse_block_outputs(description, last_output * layers.n_finished),
    ):
        result = compute()
    for layer, layer_points in enumerate(stored_points):
        points[:, layer_steps(description, layer)] = layer_points
    return result


def layer_steps(description: ModelDescription, layer: int) -> slice:
    """The indices of the steps of a layer."""
    start = 1 + sum(len(layer_taps) for layer_taps in description.layer_taps[:layer])
    return slice(start, start + len(description.layer_taps[layer]))


@contextmanager
def save_layers(description: ModelDescription, points: Points, layers: "StoredLayers") -> Iterator[None]:
    """While the model runs, store the points of every layer that is not stored yet, as soon as it has run."""

    def save(layer: int, out: Any) -> None:
        if points.is_cuda:
            torch.cuda.synchronize(points.device)  # points are copied on a side stream
        layers.write(layer, points[:, layer_steps(description, layer)])

    with ExitStack() as stack:
        unfinished = range(layers.n_finished, len(description.layer_taps))
        hooks = [
            ModuleHook(description.layer_taps[layer][-1].module, "out", partial(save, layer)) for layer in unfinished
        ]
        stack.enter_context(apply_module_hooks(hooks))
        yield


@dataclass(frozen=True)
class StoredLayers:
    """The layers of one batch of texts that are stored in a folder."""

    folder: Path
    n_finished: int

    @staticmethod
    def open(folder: Path, model: RunnableModel, batch: Sequence[Tensor]) -> "StoredLayers":
        """The folder of a model and some texts; raises if it belongs to others."""
        identity = {"weights": model.view.facts.get("weights"), "dtype": str(model.view.dtype), "texts": _digest(batch)}
        metadata_file = folder / "trace.json"
        if metadata_file.is_file():
            _check_identity(metadata_file, identity)
        else:
            check_writable(metadata_file)
            metadata = {"written_by": signature()} | identity
            write_file(metadata_file, lambda file: file.write_text(json.dumps(metadata, indent=1)))
        n_finished = 0
        if model.description.shares_states:  # the points of a layer are not all that the next one reads
            return StoredLayers(folder, n_finished)
        while n_finished < model.view.layers and layer_file(folder, n_finished).is_file():
            n_finished += 1
        return StoredLayers(folder, n_finished)

    def read(self, layer: int) -> Points:
        """The points of a layer."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        file = layer_file(self.folder, layer)
        try:
            return load_file(file)["points"]
        except (SafetensorError, OSError, KeyError) as error:
            raise RheoscopeError(
                Message("{file} is damaged ({reason}); delete it and run again", file=str(file), reason=str(error))
            ) from error

    def write(self, layer: int, points: Points) -> None:
        """Store the points of a layer. The file appears when it is complete."""
        from safetensors.torch import save_file

        stored = {"points": points.contiguous().cpu()}
        write_file(layer_file(self.folder, layer), lambda file: save_file(stored, file))


def layer_file(folder: Path, layer: int) -> Path:
    return folder / f"layer_{layer:04}.safetensors"


def _digest(batch: Sequence[Tensor]) -> str:
    return hashlib.sha256(json.dumps([ids.tolist() for ids in batch]).encode()).hexdigest()[:16]


def _check_identity(metadata_file: Path, identity: dict[str, Any]) -> None:
    try:
        stored = json.loads(metadata_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        stored = {}
    differing = [name for name, value in identity.items() if not isinstance(stored, dict) or stored.get(name) != value]
    if differing:
        raise RheoscopeError(
            Message(
                "{folder} holds layers of a run with other {names}; choose another folder",
                folder=str(metadata_file.parent),
                names=", ".join(differing),
            ),
            Advice("rs.resumable_trace(model, texts, 'another_folder')"),
        )
