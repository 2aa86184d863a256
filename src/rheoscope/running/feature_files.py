"""The files of sparse dictionaries: the layouts of SAELens and of dictionary_learning, as safetensors. Others are refused by name."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rheoscope.files import write_file
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.running.dictionary_learning_layout import dictionary_learning_features
from rheoscope.running.feature_activations import JumpReLU, ReLU, TopK
from rheoscope.running.feature_sites import Site
from rheoscope.running.feature_weights import NORMALISATIONS, FeatureWeights
from rheoscope.running.sae_lens_layout import sae_lens_config, sae_lens_features
from rheoscope.shapes import RheoscopeError

DEFAULT_FEATURES = Path(__file__).parents[1] / "models" / "default_features"
"""The dictionary of the default model."""
SAE_LENS_CONFIG, SAE_LENS_TENSORS = "cfg.json", "sae_weights.safetensors"
DICTIONARY_LEARNING_CONFIG = "config.json"
PICKLES = (".pt", ".pth", ".bin", ".pkl", ".ckpt")
LAYOUTS = "cfg.json and sae_weights.safetensors (SAELens), or config.json and ae.safetensors (dictionary_learning)"


def read_weights(path: Path, site: str | None, input_scale: float | None) -> FeatureWeights:
    """The dictionary of a directory or of a safetensors file."""
    path = path.expanduser()
    tensor_file = _tensor_file(path)
    tensors, chosen_site = _read_tensors(tensor_file), None if site is None else Site.parse(site)
    config_path = tensor_file.parent / SAE_LENS_CONFIG
    if config_path.is_file():
        features = sae_lens_features(_read_json(config_path), tensors, chosen_site)
    else:
        config_path = tensor_file.parent / DICTIONARY_LEARNING_CONFIG
        config = _read_json(config_path) if config_path.is_file() else {}
        features = dictionary_learning_features(config, tensors, chosen_site)
    _check_shapes(features, tensor_file)
    features = features if input_scale is None else _fold_scale(features, input_scale)
    _check_normalisation(features)
    name = path.name if path.is_dir() else path.stem
    digest = hashlib.sha256(tensor_file.read_bytes()).hexdigest()[:16]
    return replace(features, facts={**features.facts, "name": name, "weights": digest})


def write_weights(features: FeatureWeights, directory: Path) -> Path:
    """Write a dictionary of one site in the layout of SAELens. Existing files are not replaced."""
    from safetensors.torch import save_file

    if not isinstance(features.activation, ReLU | JumpReLU | TopK) or features.reads != features.writes:
        raise RheoscopeError(
            Message(
                "only autoencoders with ReLU, JumpReLU or TopK can be saved, got {received}", received=features.summary
            )
        )
    directory.mkdir(parents=True, exist_ok=True)
    config_file, tensor_file = directory / SAE_LENS_CONFIG, directory / SAE_LENS_TENSORS
    for file in (config_file, tensor_file):
        if file.exists():
            raise RheoscopeError(Message("{path} exists; choose another directory", path=str(file)))
    tensors = {"W_enc": features.W_enc, "b_enc": features.b_enc, "W_dec": features.W_dec, "b_dec": features.b_dec}
    tensors |= {"threshold": features.activation.threshold} if isinstance(features.activation, JumpReLU) else {}
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    if all(torch.equal(tensor.half().to(tensor.dtype), tensor) for tensor in stored.values()):
        stored = {name: tensor.half() for name, tensor in stored.items()}
    write_file(tensor_file, lambda file: save_file(stored, file))
    text = json.dumps(sae_lens_config(features), indent=1)
    write_file(config_file, lambda file: file.write_text(text + "\n", encoding="utf-8"))
    return directory


def _tensor_file(path: Path) -> Path:
    """The only safetensors file of a directory, or the file itself. Raises, naming the files that are there instead."""
    if not path.exists():
        raise RheoscopeError(
            Message(
                "there is no dictionary {path}; expected a directory with {layouts}", path=str(path), layouts=LAYOUTS
            )
        )
    files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    candidates = [file for file in files if file.suffix == ".safetensors" and file.name != "sparsity.safetensors"]
    if len(candidates) == 1:
        return candidates[0]
    pickle = next((file for file in files if file.suffix in PICKLES), None)
    if pickle is not None and not candidates:
        target = pickle.with_suffix(".safetensors").name
        raise RheoscopeError(
            Message("{file} is a pickle, which can run code when it is opened; convert it first", file=pickle.name),
            Advice(
                "import torch; from safetensors.torch import save_file; "
                f"save_file(torch.load({pickle.name!r}, weights_only=True), {target!r})"
            ),
        )
    raise RheoscopeError(
        Message(
            "{path} holds {received}, expected {layouts}",
            path=str(path),
            received=", ".join(file.name for file in (candidates or files)[:6]) or Message("no file"),
            layouts=LAYOUTS,
        )
    )


def _read_tensors(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise _unreadable(file, error) from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error
    if not isinstance(config, dict):
        raise _unreadable(file, TypeError(type(config).__name__))
    return config


def _unreadable(file: Path, error: Exception) -> RheoscopeError:
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return RheoscopeError(Message("{file} cannot be read ({reason}); download it again", file=str(file), reason=reason))


def _check_shapes(features: FeatureWeights, file: Path) -> None:
    """Raise unless the tensors fit each other."""
    (width, size), (n_directions, output_width) = features.W_enc.shape, features.W_dec.shape
    fits = (len(features.b_enc), n_directions, len(features.b_dec)) == (size, size, output_width)
    if not fits or (features.reads == features.writes and width != output_width):
        raise RheoscopeError(
            Message(
                "the encoder {encoder} and the decoder {decoder} of {file} do not fit each other",
                encoder=str((width, size)),
                decoder=str((n_directions, output_width)),
                file=file.name,
            )
        )


def _fold_scale(features: FeatureWeights, factor: float) -> FeatureWeights:
    """The dictionary of the unscaled inputs, for one that was trained on `factor` times them."""
    if not factor > 0:
        raise RheoscopeError(
            Message("input_scale must be positive, got {received}", received=factor),
            Advice("rs.Features.load(path, input_scale=0.1)"),
        )
    return replace(
        features,
        W_enc=features.W_enc * factor,
        W_dec=features.W_dec / factor,
        b_dec=features.b_dec / factor,
        input_bias=None if features.input_bias is None else features.input_bias / factor,
        normalisation="none",
    )


def _check_normalisation(features: FeatureWeights) -> None:
    if features.normalisation not in NORMALISATIONS:
        raise RheoscopeError(
            Message(
                "this dictionary expects inputs scaled by {setting!r}, whose factor is not in its files",
                setting=features.normalisation,
            ),
            Advice("rs.Features.load(path, input_scale=0.1)"),
        )
