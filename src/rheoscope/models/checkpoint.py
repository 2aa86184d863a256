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
from rheoscope.models.transformer import Transformer, Translator, architecture, build
from rheoscope.models.vocabulary import load_tokenizer
from rheoscope.running.loading_stages import Progress
from rheoscope.running.weight_files import check_safetensors, check_weights, device_of, dtype_of, placed
from rheoscope.shapes import RheoscopeError

WEIGHTS, CONFIG, TOKENIZER, CARD = "model.safetensors", "config.json", "tokenizer.json", "card.json"
TABLES = ("cos", "sin", "table", "slopes")
"""Buffers that keep their dtype whatever the weights have: where tokens stand."""
DRAWS = {nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_, Tensor.normal_, Tensor.uniform_}
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
    >>> again, tokenizer = opened(save(model, tempfile.mkdtemp()))
    >>> torch.equal(again(torch.tensor([[1, 2, 3]])), model(torch.tensor([[1, 2, 3]])))
    True
    """
    check_own(Path(directory))
    return store(model, directory, tokenizer, card, dtype)


def check_own(directory: Path) -> None:
    """Refuse a directory that holds others' files under the names of a model's."""
    there = next((name for name in (CONFIG, WEIGHTS, TOKENIZER, CARD) if (directory / name).exists()), None)
    if there is not None and not ours(directory):
        raise RheoscopeError(f"{directory} holds a {there} that Rheoscope did not write; type another directory")


def ours(directory: Path) -> bool:
    """Whether the config.json in a directory is that of a model of this project."""
    try:
        told = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(told, dict) and told.get("model_type") == "rheoscope"


def store(
    model: nn.Module,
    directory: str | Path,
    tokenizer: Any = None,
    card: Mapping[str, Any] | None = None,
    dtype: str | None = None,
) -> Path:
    """As `save`, into a directory that is known to be free."""
    directory, stored = Path(directory), None if dtype is None else dtype_of(dtype, None)
    tensors = {name: x.detach().to(stored).contiguous().cpu() for name, x in own_tensors(model).items()}
    write_file(directory / WEIGHTS, lambda file: save_tensors(tensors, file))
    if tokenizer is not None:
        told = (
            Path(tokenizer).read_text(encoding="utf-8")
            if isinstance(tokenizer, str | Path)
            else tokenizer.to_str(pretty=True)
        )
        write_file(directory / TOKENIZER, lambda file: file.write_text(told, encoding="utf-8"))
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


def opened(
    directory: str | Path,
    device: str | None = None,
    dtype: str | None = None,
    drawn: int | None = None,
    progress: Progress | None = None,
) -> tuple[Transformer | Translator, Any]:
    """The network and its tokenizer (None where there is none); `drawn`, a seed, gives initial weights.

    float32 on the CPU, the stored dtype on a GPU, unless `dtype` says.
    """
    directory = Path(directory)
    config, wanted, place = config_of(directory), dtype_of(dtype, device), device_of(device or "cpu")
    if drawn is not None:
        network = initial(config, drawn)
        wanted = torch.float32 if wanted == "auto" else wanted
    else:
        with Undrawn():
            network = architecture(config)
        found = fill(network, directory, progress)
        wanted = found if wanted == "auto" else wanted
    return placed(network, place, wanted, TABLES).eval(), _tokenizer(directory, config)


def _tokenizer(directory: Path, config: Config) -> Any:
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


def taken(
    network: Transformer | Translator, device: str | None, dtype: str | None, drawn: int | None
) -> Transformer | Translator:
    """A network that is already built, where and how it is wanted, or the same architecture at its initial weights."""
    weight = next(network.parameters())
    place = weight.device if device is None else device_of(device)
    wanted = weight.dtype if dtype is None else dtype_of(dtype, device)
    return placed(network if drawn is None else initial(network.config, drawn), place, wanted, TABLES).eval()


class Undrawn(TorchFunctionMode):
    """Meanwhile no module draws its initial weights: a file is about to replace every one of them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return None if func in DRAWS else func(*args, **kwargs or {})


def initial(config: Config, seed: int = 0) -> Transformer | Translator:
    """The architecture at its initial weights, the same ones for a seed: the control that every claim needs."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build(config)


def config_of(directory: str | Path) -> Config:
    """The config of a saved model; one that is missing, broken or of another kind is refused."""
    file = Path(directory) / CONFIG
    if not file.is_file():
        raise RheoscopeError(f"{directory} holds no {CONFIG}; type the directory that a model was saved to")
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RheoscopeError(f"{file} is no JSON ({str(error).splitlines()[0]}); get it again") from error
    if not isinstance(told, dict) or told.get("model_type") != "rheoscope":
        raise RheoscopeError(f'{file} does not say "model_type": "rheoscope"; type a directory that Rheoscope saved')
    return Config.of(told)


@torch.no_grad()
def fill(network: nn.Module, directory: str | Path, progress: Progress | None = None) -> torch.dtype:
    """Put the weights of a saved model into a network of its config; gives the dtype that they are stored in."""
    from safetensors.torch import load_file

    file = Path(directory) / WEIGHTS
    if not file.is_file():
        raise RheoscopeError(f"{directory} holds no {WEIGHTS}; type the directory that a model was saved to")
    check_safetensors(file)
    held, own = load_file(file), own_tensors(network)
    _check_fit(file, held, own)
    for done, (name, x) in enumerate(own.items(), 1):
        x.copy_(held[name])
        if progress is not None:
            progress(done, len(own))
    check_weights(network)
    return next(iter(held.values())).dtype


def own_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Every parameter by name, a tied one under its first name alone."""
    return dict(network.named_parameters())


def _check_fit(file: Path, held: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Refuse weights that are missing, unknown, of another shape or no floating-point numbers."""
    both = sorted(held.keys() & own.keys())
    problems = {
        "missing": sorted(own.keys() - held.keys()),
        "unknown": sorted(held.keys() - own.keys()),
        "of another shape": [
            f"{name} {tuple(held[name].shape)} for {tuple(own[name].shape)}"
            for name in both
            if held[name].shape != own[name].shape
        ],
        "no floating-point numbers": [name for name in both if not held[name].is_floating_point()],
    }
    for what, names in problems.items():
        if names:
            more = ", …" if len(names) > 3 else ""
            raise RheoscopeError(
                f"the weights of {file.parent} do not fit its config ({what}: {', '.join(names[:3])}{more}); get both again"
            )
