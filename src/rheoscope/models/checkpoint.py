"""A model of this project as files: model.safetensors, config.json, tokenizer.json; whole or not at all, never a pickle."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rheoscope.files import write_file
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer, Translator, build, make_architecture
from rheoscope.models.vocabulary import load_tokenizer
from rheoscope.running.loading_stages import Progress
from rheoscope.running.weight_files import check_safetensors, check_weights, move_network, parse_device, parse_dtype
from rheoscope.shapes import RheoscopeError

WEIGHTS, CONFIG, TOKENIZER, CARD = "model.safetensors", "config.json", "tokenizer.json", "card.json"
POSITION_BUFFERS = ("cos", "sin", "table", "slopes")
"""Buffers that keep their dtype whatever the weights have: where tokens stand."""
INIT_FUNCTIONS = {nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_, Tensor.normal_, Tensor.uniform_}
"""How modules of torch and of this project draw their initial weights."""


def save(
    model: nn.Module,
    directory: str | Path,
    tokenizer: Any = None,
    card: Mapping[str, Any] | None = None,
    dtype: str | None = None,
) -> Path:
    """Write a Transformer or a Translator to a directory that `rheoscope.load` opens.

    **Takes** `tokenizer`, a `tokenizers.Tokenizer` or the path of a tokenizer.json; `card`, anything worth knowing of the
    model, kept as card.json; `dtype="float16"` or `"bfloat16"` stores weights in half the space (they are float32 again
    when opened on a CPU).

    **Laws** a directory that holds others' files under these names is refused; each file is written beside its name and
    then renamed; tied weights are stored once; what was saved opens with the same logits, bit for bit, where the dtype is
    the same.

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
    """Refuse a directory that holds others' files under the names of a model's."""
    foreign = next((name for name in (CONFIG, WEIGHTS, TOKENIZER, CARD) if (directory / name).exists()), None)
    if foreign is not None and not is_rheoscope_model(directory):
        raise RheoscopeError(f"{directory} holds a {foreign} that Rheoscope did not write; type another directory")


def is_rheoscope_model(directory: Path) -> bool:
    """Whether the config.json in a directory is that of a model of this project."""
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
    """As `save`, into a directory that is known to be free."""
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
    """A safetensors file; a disk that is full or gone is an OSError, as everywhere."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, file, {"format": "pt"})
    except SafetensorError as error:  # a full disk, for one
        raise OSError(str(error)) from error


def load_network(
    directory: str | Path,
    device: str | None = None,
    dtype: str | None = None,
    init_seed: int | None = None,
    progress: Progress | None = None,
) -> tuple[Transformer | Translator, Any]:
    """The network and its tokenizer (None where there is none); `drawn`, a seed, gives initial weights.

    float32 on the CPU, the stored dtype on a GPU, unless `dtype` says.
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


def _read_tokenizer(directory: Path, config: Config) -> Any:
    """The tokenizer beside the weights, which must not have more tokens than they."""
    file = directory / TOKENIZER
    if not file.is_file():
        return None
    tokenizer = load_tokenizer(file)
    if tokenizer.get_vocab_size() > config.vocabulary:
        raise RheoscopeError(
            f"{file} has {tokenizer.get_vocab_size()} tokens, the model {config.vocabulary}; get both again"
        )
    return tokenizer


def prepare_network(
    network: Transformer | Translator, device: str | None, dtype: str | None, init_seed: int | None
) -> Transformer | Translator:
    """A network that is already built, where and how it is wanted, or the same architecture at its initial weights."""
    weight = next(network.parameters())
    target_device = weight.device if device is None else parse_device(device)
    target_dtype = weight.dtype if dtype is None else parse_dtype(dtype, device)
    return move_network(
        network if init_seed is None else initial_network(network.config, init_seed),
        target_device,
        target_dtype,
        POSITION_BUFFERS,
    ).eval()


class SkipInit(TorchFunctionMode):
    """Meanwhile no module draws its initial weights: a file is about to replace every one of them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return None if func in INIT_FUNCTIONS else func(*args, **kwargs or {})


def initial_network(config: Config, seed: int = 0) -> Transformer | Translator:
    """The architecture at its initial weights, the same ones for a seed: the control that every claim needs."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build(config)


def read_config(directory: str | Path) -> Config:
    """The config of a saved model; one that is missing, broken or of another kind is refused."""
    file = Path(directory) / CONFIG
    if not file.is_file():
        raise RheoscopeError(f"{directory} holds no {CONFIG}; type the directory that a model was saved to")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RheoscopeError(f"{file} is no JSON ({str(error).splitlines()[0]}); get it again") from error
    if not isinstance(content, dict) or content.get("model_type") != "rheoscope":
        raise RheoscopeError(f'{file} does not say "model_type": "rheoscope"; type a directory that Rheoscope saved')
    return Config.from_dict(content)


@torch.no_grad()
def load_weights(network: nn.Module, directory: str | Path, progress: Progress | None = None) -> torch.dtype:
    """Put the weights of a saved model into a network of its config; gives the dtype that they are stored in."""
    from safetensors.torch import load_file

    file = Path(directory) / WEIGHTS
    if not file.is_file():
        raise RheoscopeError(f"{directory} holds no {WEIGHTS}; type the directory that a model was saved to")
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
    """Every parameter by name, a tied one under its first name alone."""
    return dict(network.named_parameters())


def _check_fit(file: Path, stored: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse weights that are missing, unknown, of another shape or no floating-point numbers."""
    common = sorted(stored.keys() & expected.keys())
    problems = {
        "missing": sorted(expected.keys() - stored.keys()),
        "unknown": sorted(stored.keys() - expected.keys()),
        "of another shape": [
            f"{name} {tuple(stored[name].shape)} for {tuple(expected[name].shape)}"
            for name in common
            if stored[name].shape != expected[name].shape
        ],
        "no floating-point numbers": [name for name in common if not stored[name].is_floating_point()],
    }
    for problem, names in problems.items():
        if names:
            ellipsis = ", …" if len(names) > 3 else ""
            raise RheoscopeError(
                f"the weights of {file.parent} do not fit its config ({problem}: {', '.join(names[:3])}{ellipsis}); get both again"
            )
