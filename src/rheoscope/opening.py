"""rs.load: a Hub name, a directory or a model object becomes a Model. Only this file knows every model format."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message, Verbatim
from rheoscope.running.loading_stages import Progress, progress_stage
from rheoscope.running.matmul_precision import full_float32_products
from rheoscope.running.runner import RunnableModel
from rheoscope.running.streamed_weights import BLOCKS_IN_MEMORY, weights_of
from rheoscope.running.weight_files import default_device, fingerprint
from rheoscope.running.weights_snapshot import take_snapshot
from rheoscope.shapes import RheoscopeError

LoadProgress = tuple[Progress, Progress, Progress]
"""The callbacks for reading, hashing and certifying."""
DEFAULT_MODEL = Path(__file__).parent / "models" / "default"
"""The small trained model that comes with the package."""
DEFAULT_NAME = "default"
"""Its name, where a list of models names it. A directory of this name is `./default`."""
IN_MEMORY = "memory"
"""The fact `opened_from` of a model that was opened from an object. A command cannot open it."""


@full_float32_products()
def load(
    source: str | Path | Any = None,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    tokenizer: Any = None,
    untrained: bool = False,
    seed: int = 0,
    stream: bool | None = None,
    progress: Progress | None = None,
    adapter: str | Path | bool | None = None,
) -> RunnableModel:
    """Open a Transformer as operators on one space E.

    **Returns** a Model: `model.view` (every head as M and F), `model.trace(text)` (the text as points of E),
    `model.run(text, edit=…, hooks=…)` (the same with edited heads and points).

    **Settings**
    `source` is a Hub name, a directory, or a built model of `transformers` or `rheoscope.models` (with `tokenizer=`). Without
    it, or with "default", the small model of the package is loaded. `"name#vision"` is the vision tower of a model with towers.
    `untrained=True` initialises the same architecture as its family does, and reads no weight file. It is the untrained
    control that every claim about training needs. `seed` chooses the initial weights.
    `device` defaults to a working GPU, else to the CPU. A built model stays on its device. `device="auto"` spreads the layers
    of a pretrained model over all GPUs (by accelerate).
    `dtype` defaults to float32 on the CPU and to the checkpoint's dtype on a GPU. A built model keeps its own. Another device
    or dtype makes a copy of it.
    `stream=True` keeps one block of the network in memory at a time and reads the others from the safetensors files. By default
    this happens, with a warning, if the weights do not fit. `stream=False` never does it.
    `progress(done, total)` reports reading, hashing and certifying in percent.
    `adapter` chooses adapters of `peft`: a directory or a hub name to attach, the name of an adapter in the model, or `False` for the base
    model. By default the adapters of the source act: those that are active in a model object, or in an adapter directory.

    **Laws** The logits equal the unhooked model's bit for bit. Weights and displacements recomputed from the View equal the
    model's: every load certifies this on short texts with tokens at far positions (`model.view.facts["certificate"]`). Unsupported
    architectures raise an error. So do weights that the stream needs and the checkpoint lacks. The certificate lists weights outside
    the stream.
    A built model is unchanged after any call: its mode (dropout included), dtypes, weights, buffers and hooks. If its weights
    change later, for example in a training step, calls raise an error until it is loaded again. The M and F of adapters, merged
    or not, equal those of the merged model.

    **Safety** Only safetensors files are read, and remote code never runs.

    >>> import rheoscope as rs
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = rs.load(GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=9)))
    >>> model.trace([1, 2, 3]).points.shape
    torch.Size([5, 3, 8])
    """
    initial_seed = _initial_seed(untrained, seed)
    source = None if isinstance(source, str) and source == DEFAULT_NAME else source
    if source is None and not (DEFAULT_MODEL / "config.json").is_file():
        raise RheoscopeError(
            Message("this installation has no default model ({path})", path=str(DEFAULT_MODEL)),
            Advice("rs.load('gpt2')", "--model gpt2"),
        )
    source = DEFAULT_MODEL if source is None else source
    is_native = is_own_model(source)
    device = resolve_device(source, device, is_native)
    if stream:
        _check_streamable(source, device, is_native, untrained)
    load_progress = progress_stage(progress, 0, 50), progress_stage(progress, 50, 75), progress_stage(progress, 75, 100)
    if is_native:
        _refuse_adapter(adapter)
        return _load_native(source, device, dtype, tokenizer, initial_seed, load_progress)
    return _load_pretrained(source, device, dtype, revision, tokenizer, initial_seed, stream, load_progress, adapter)


def _refuse_adapter(adapter: str | Path | bool | None) -> None:
    """Raise for an adapter on a model of this package, in which nothing is adapted."""
    if adapter:
        raise RheoscopeError(
            Message(
                "models of this package have no adapters; adapter={received} needs a pretrained model",
                received=str(adapter),
            ),
            Advice(f"rs.load('gpt2', adapter={str(adapter)!r})", f"--model gpt2 --adapter {adapter}"),
        )


def resolve_device(source: Any, device: str | None, is_native: bool) -> str | None:
    """The device by name. A built model stays on its device, and `auto` applies only to models that may exceed one GPU."""
    use_default = (device is None and not isinstance(source, nn.Module)) or (
        device == "auto" and (is_native or default_device() == "cpu")
    )
    return default_device() if use_default else device


def _check_streamable(source: Any, device: str | None, is_native: bool, untrained: bool) -> None:
    """Raise for a model that has no checkpoint to stream, and for one that is spread over several devices."""
    problem = None
    if isinstance(source, nn.Module):
        problem = Message("a built model is in memory already, so it cannot be streamed")
    elif is_native:
        problem = Message("the models of this package are small and cannot be streamed; choose a pretrained model")
    elif untrained:
        problem = Message("initial weights are in no file, so an untrained model cannot be streamed")
    elif device == "auto":
        problem = Message(
            "device='auto' keeps all weights in memory, so the model cannot be streamed; choose one device"
        )
    if problem is not None:
        raise RheoscopeError(problem, use(stream=False))


def _initial_seed(untrained: bool, seed: int) -> int | None:
    """The seed of the initial weights, or None for the weights of the source."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise RheoscopeError(
            Message("seed must be an integer between 0 and 2**63 - 1, got {received!r}", received=seed), use(seed=0)
        )
    if seed and not untrained:
        raise RheoscopeError(
            Message("seed={seed} chooses initial weights, but untrained is False", seed=seed),
            Advice(f"untrained=True, seed={seed}"),
        )
    return seed if untrained else None


def _display_name(name: str, initial_seed: int | None) -> str:
    """The name of a model. An untrained control is marked as such."""
    shown = name if isinstance(name, Message) else Verbatim(name)
    return shown if initial_seed is None else Message("{name}, untrained (seed {seed})", name=shown, seed=initial_seed)


def is_own_model(source: Any) -> bool:
    """Whether `models/` wrote it. Everything else goes to transformers, which takes seconds to import."""
    if isinstance(source, nn.Module):
        from rheoscope.models.transformer import Transformer, Translator

        return isinstance(source, Transformer | Translator)
    if not isinstance(source, str | Path):
        return False
    try:
        config = json.loads((Path(source) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("model_type") == "rheoscope"


def _load_native(
    source: Any,
    device: str | None,
    dtype: str | None,
    tokenizer: Any,
    initial_seed: int | None,
    load_progress: LoadProgress,
) -> RunnableModel:
    from rheoscope.models.build_view import describe_model
    from rheoscope.models.certificate import certify
    from rheoscope.models.checkpoint import load_network, prepare_network

    read_progress, hash_progress, proof_progress = load_progress
    if isinstance(source, nn.Module):
        network, loaded_tokenizer = prepare_network(source, device, dtype, initial_seed), None  # type: ignore[arg-type]
        name = type(source).__name__
    else:
        network, loaded_tokenizer = load_network(source, device, dtype, initial_seed, read_progress)
        name = Message("the default model") if source == DEFAULT_MODEL else str(source)
    model = describe_model(network, tokenizer or loaded_tokenizer, _display_name(name, initial_seed), hash_progress)
    certified_model = model.with_certificate(certify(model))
    proof_progress(1, 1)
    return _with_snapshot(certified_model, source, network.config.function_key())


def _load_pretrained(
    source: Any,
    device: str | None,
    dtype: str | None,
    revision: str | None,
    tokenizer: Any,
    initial_seed: int | None,
    stream: bool | None,
    load_progress: LoadProgress,
    adapter: str | Path | bool | None,
) -> RunnableModel:
    from rheoscope.pretrained.adapter_layers import adapter_layers, adapter_settings, adapter_state
    from rheoscope.pretrained.open_network import open_network
    from rheoscope.pretrained.proven_model import proven_model

    read_progress, hash_progress, proof_progress = load_progress
    opened = open_network(source, adapter, device, dtype, revision, initial_seed, stream, read_progress)
    name, network = _display_name(opened.name, initial_seed), opened.network
    is_as_written = isinstance(source, str | Path)
    model, proof = proven_model(
        network, tokenizer or opened.tokenizer, name, hash_progress, proof_progress, is_as_written
    )
    certificate = replace(proof, ignored_weights=opened.ignored_weights)
    weights = weights_of(network)
    if weights is not None:
        view = (
            replace(model.view, layers_at_once=BLOCKS_IN_MEMORY)
            .with_certificate(certificate)
            .with_check(weights.check_files)
        )
        return replace(model, view=view)
    certified_model = model.with_certificate(certificate).with_facts(opened.facts)
    layers = tuple(layer for _, layer in adapter_layers(network))
    key, settings = adapter_state(network), partial(adapter_settings, layers)
    return _with_snapshot(certified_model, source, key, settings)


def _with_snapshot(
    model: RunnableModel, source: Any, key: str = "", settings: Callable[[], Any] = lambda: None
) -> RunnableModel:
    """The model with a check that its weights and `settings()` are still those that were described.

    `key` is the config's part of the digest of the weights.

    On a GPU, the sample of values is read only for networks of the caller, since reading it waits for the device.
    """
    network, is_from_caller = model.network, isinstance(source, nn.Module)
    digest = partial(fingerprint, network, key)
    snapshot = take_snapshot(network, digest, model.view.facts["weights"], is_from_caller, settings)
    return model.with_check(snapshot.check).with_facts({"opened_from": IN_MEMORY} if is_from_caller else {})
