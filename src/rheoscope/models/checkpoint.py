"""Models of this project as files: model.safetensors, config.json and tokenizer.json, never a pickle."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rheoscope.files import write_file
from rheoscope.messages.message import Message, join
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer, Translator, build, make_architecture
from rheoscope.models.vocabulary import load_tokenizer
from rheoscope.running.loading_stages import Progress
from rheoscope.running.network_copy import copy_if_needed
from rheoscope.running.weight_files import check_safetensors, check_weights, move_network, parse_device, parse_dtype
from rheoscope.shapes import RheoscopeError
from rheoscope.space.seeded_draws import seeded_draws

WEIGHTS, CONFIG, TOKENIZER, CARD = "model.safetensors", "config.json", "tokenizer.json", "card.json"
POSITION_BUFFERS = ("cos", "sin", "table", "slopes")
"""Buffers of position encodings. They keep their dtype whatever the dtype of the weights."""
INIT_FUNCTIONS = {nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_, Tensor.normal_, Tensor.uniform_}
"""The functions with which modules of torch and of this project draw their initial weights."""


def save(
    model: nn.Module,
    directory: str | Path,
    tokenizer: Any = None,
    card: Mapping[str, Any] | None = None,
    dtype: str | None = None,
) -> Path:
    """Write a Transformer or a Translator to a directory that `rheoscope.load` opens.

    **Settings** `tokenizer` is a `tokenizers.Tokenizer` or the path of a tokenizer.json. `card` is any JSON about the model and
    becomes card.json. `dtype="float16"` or `"bfloat16"` halves the file. Such weights are float32 again when opened on a CPU.

    **Laws** Raises if the directory holds files of others under these names. Each file is written to a temporary name and then
    renamed. Tied weights are stored once. A model saved in its own dtype opens with bit-identical logits.

    >>> import tempfile, torch
    >>> from rheoscope.models.config import Config
    >>> from rheoscope.models.transformer import Transformer
    >>> model = Transformer(Config(vocabulary=9, width=8, depth=1, heads=2)).eval()
    >>> again, tokenizer = load_network(save(model, tempfile.mkdtemp()))
    >>> torch.equal(again(torch.tensor([[1, 2, 3]])), model(torch.tensor([[1, 2, 3]])))
    True
    """
    check_no_foreign_files(Path(directory))
    return write_model(model, directory, tokenizer, card, dtype)


def check_no_foreign_files(directory: Path) -> None:
    """Raise if a directory holds files of others under the names of a model's files."""
    foreign = next((name for name in (CONFIG, WEIGHTS, TOKENIZER, CARD) if (directory / name).exists()), None)
    if foreign is not None and not is_rheoscope_model(directory):
        raise RheoscopeError(
            Message(
                "{directory} contains {file}, which Rheoscope did not write; choose another directory",
                directory=str(directory),
                file=foreign,
            )
        )


def is_rheoscope_model(directory: Path) -> bool:
    """Whether the config.json in a directory belongs to a model of this project."""
    try:
        content = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("model_type") == "rheoscope"


def write_model(
    model: nn.Module,
    directory: str | Path,
    tokenizer: Any = None,
    card: Mapping[str, Any] | None = None,
    dtype: str | None = None,
) -> Path:
    """Like `save`, for a directory that is known to hold no files of others."""
    directory, stored_dtype = Path(directory), None if dtype is None else parse_dtype(dtype, None)
    tensors = {
        name: parameter.detach().to(stored_dtype).contiguous().cpu()
        for name, parameter in parameters_by_name(model).items()
    }
    write_file(directory / WEIGHTS, lambda file: save_tensors(tensors, file))
    if tokenizer is not None:
        tokenizer_json = (
            Path(tokenizer).read_text(encoding="utf-8")
            if isinstance(tokenizer, str | Path)
            else tokenizer.to_str(pretty=True)
        )
        write_file(directory / TOKENIZER, lambda file: file.write_text(tokenizer_json, encoding="utf-8"))
    if card is not None:
        write_file(directory / CARD, lambda file: file.write_text(json.dumps(card, indent=1, default=str) + "\n"))
    config: Any = model.config
    write_file(directory / CONFIG, config.save)
    return directory


def save_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    """Write a safetensors file. A full or missing disk raises OSError, as other writes do."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, file, {"format": "pt"})
    except SafetensorError as error:  # a full disk, for example
        raise OSError(str(error)) from error


def load_network(
    directory: str | Path,
    device: str | None = None,
    dtype: str | None = None,
    init_seed: int | None = None,
    progress: Progress | None = None,
) -> tuple[Transformer | Translator, Any]:
    """The network and its tokenizer, or None without one. `init_seed` gives initial weights instead of the stored ones.

    The dtype is float32 on the CPU and the stored dtype on a GPU, unless `dtype` is given.
    """
    directory = Path(directory)
    config, target_dtype, target_device = (
        read_config(directory),
        parse_dtype(dtype, device),
        parse_device(device or "cpu"),
    )
    if init_seed is not None:
        network = initial_network(config, init_seed)
        target_dtype = torch.float32 if target_dtype == "auto" else target_dtype
    else:
        with SkipInit():
            network = make_architecture(config)
        stored_dtype = load_weights(network, directory, progress)
        target_dtype = stored_dtype if target_dtype == "auto" else target_dtype
    return move_network(network, target_device, target_dtype, POSITION_BUFFERS).eval(), _read_tokenizer(
        directory, config
    )


def first_names(names: Sequence[str], limit: int = 3) -> Message:
    """The first names of a list, with an ellipsis if there are more.

    >>> first_names(["a", "b", "c", "d"])
    'a, b, c, …'
    """
    return join(", ", [*names[:limit], *(["…"] if len(names) > limit else [])])


def _read_tokenizer(directory: Path, config: Config) -> Any:
    """The tokenizer next to the weights. It may not have more tokens than the model."""
    file = directory / TOKENIZER
    if not file.is_file():
        return None
    tokenizer = load_tokenizer(file)
    if tokenizer.get_vocab_size() > config.vocabulary:
        raise RheoscopeError(
            Message(
                "{file} has {tokens} tokens, but the model has {vocabulary}; download or save both again",
                file=str(file),
                tokens=tokenizer.get_vocab_size(),
                vocabulary=config.vocabulary,
            )
        )
    return tokenizer


def prepare_network(
    network: Transformer | Translator, device: str | None, dtype: str | None, init_seed: int | None
) -> Transformer | Translator:
    """The network itself, its copy on another device or in another dtype, or its architecture with initial weights."""
    weight = next(network.parameters())
    target_device = weight.device if device is None else parse_device(device)
    target_dtype = weight.dtype if dtype is None else parse_dtype(dtype, device)
    if init_seed is None:
        return copy_if_needed(network, target_device, target_dtype, POSITION_BUFFERS)
    return move_network(
        initial_network(network.config, init_seed), target_device, target_dtype, POSITION_BUFFERS
    ).eval()


class SkipInit(TorchFunctionMode):
    """Skip the initial draws of all modules, because a file replaces every weight right after."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return None if func in INIT_FUNCTIONS else func(*args, **kwargs or {})


def initial_network(config: Config, seed: int = 0) -> Transformer | Translator:
    """The architecture with initial weights that depend only on the seed: the untrained control."""
    with seeded_draws(seed):
        return build(config)


def read_config(directory: str | Path) -> Config:
    """The config of a saved model. Raises if it is missing, damaged or of another kind."""
    file = Path(directory) / CONFIG
    if not file.is_file():
        raise RheoscopeError(
            Message(
                "{directory} contains no {file}; choose the directory that a model was saved to",
                directory=str(directory),
                file=CONFIG,
            )
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RheoscopeError(
            Message(
                "{file} is not valid JSON ({reason}); download or save it again",
                file=str(file),
                reason=str(error).splitlines()[0],
            )
        ) from error
    if not isinstance(content, dict) or content.get("model_type") != "rheoscope":
        raise RheoscopeError(
            Message('{file} lacks "model_type": "rheoscope"; choose a directory that Rheoscope saved', file=str(file))
        )
    return Config.from_dict(content)


@torch.no_grad()
def load_weights(network: nn.Module, directory: str | Path, progress: Progress | None = None) -> torch.dtype:
    """Copy the weights of a saved model into a network of its config, and return the dtype they are stored in."""
    from safetensors.torch import load_file

    file = Path(directory) / WEIGHTS
    if not file.is_file():
        raise RheoscopeError(
            Message(
                "{directory} contains no {file}; choose the directory that a model was saved to",
                directory=str(directory),
                file=WEIGHTS,
            )
        )
    check_safetensors(file)
    stored, parameters = load_file(file), parameters_by_name(network)
    _check_fit(file, stored, parameters)
    for n_loaded, (name, parameter) in enumerate(parameters.items(), 1):
        parameter.copy_(stored[name])
        if progress is not None:
            progress(n_loaded, len(parameters))
    check_weights(network)
    return next(iter(stored.values())).dtype


def parameters_by_name(network: nn.Module) -> dict[str, Tensor]:
    """Every parameter and every stored buffer by name. A tied parameter appears only under its first name."""
    stored_names = network.state_dict().keys()
    buffers = {name: buffer for name, buffer in network.named_buffers() if name in stored_names}
    return dict(network.named_parameters()) | buffers


def _check_fit(file: Path, stored: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise if weights are missing, unknown, of another shape or not floating-point."""
    common = sorted(stored.keys() & expected.keys())
    mismatches = [
        Message(
            "{name} is {stored_shape} instead of {expected_shape}",
            name=name,
            stored_shape=tuple(stored[name].shape),
            expected_shape=tuple(expected[name].shape),
        )
        for name in common
        if stored[name].shape != expected[name].shape
    ]
    problems: list[tuple[str, list[Any]]] = [
        (Message("missing"), sorted(expected.keys() - stored.keys())),
        (Message("unknown"), sorted(stored.keys() - expected.keys())),
        (Message("wrong shape"), mismatches),
        (Message("not floating-point"), [name for name in common if not stored[name].is_floating_point()]),
    ]
    for problem, names in problems:
        if names:
            raise RheoscopeError(
                Message(
                    "the weights of {directory} do not fit its config ({problem}: {names}); download or save both again",
                    directory=str(file.parent),
                    problem=problem,
                    names=first_names(names),
                )
            )
