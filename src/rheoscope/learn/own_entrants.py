"""Entrants from a user's own file: `my_attention.py:Mine` is imported, checked against laws and registered.

The laws hold for every entrant of this project, and a comparison would be unfair without them:

    shape           an update for every token, of the width of the model, at any length up to the context
    start           the seed determines the initial weights
    repeatability   the same weights and tokens give the same output
    causality       in a decoder, the output at a token does not depend on later tokens
    texts           the texts of a batch do not influence each other
    gradient        every parameter has a finite gradient
"""

import hashlib
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import torch
from torch import Tensor, nn

from rheoscope.learn.entrants import parse_penalties
from rheoscope.learn.initial_weights import initial_model
from rheoscope.messages.message import Message
from rheoscope.models.config import Config
from rheoscope.models.own_attention import OWN_ATTENTION
from rheoscope.shapes import RheoscopeError

FILE_SUFFIX = ".py:"
LETTERS, LONGEST = 16, 24
"""The vocabulary and the longest text of the models on which laws are checked."""
TOLERANCE = 1e-4
FINGERPRINTS: dict[str, str] = {}
"""The fingerprint of the file of every registered entrant."""


def is_own_entrant(name: str) -> bool:
    """Whether an entrant is a class in a file.

    >>> is_own_entrant("my_attention.py:Mine"), is_own_entrant("metric:flops")
    (True, False)
    """
    return FILE_SUFFIX in name


def register_own_entrant(reference: str, config: Config) -> str:
    """Import the class of `FILE.py:CLASS`, check its laws and register it. Returns the name of the entrant in the race.

    A size measure or penalties may follow, as for every entrant: `FILE.py:CLASS:parameters+residual=0.1`.

    **Laws** A file that does not import, a class that is not a module and a law that does not hold are refused in one line.
    """
    path_text, _, rest = reference.partition(FILE_SUFFIX)
    class_name = rest.partition("+")[0].partition(":")[0]
    file = Path(f"{path_text}{FILE_SUFFIX[:-1]}")
    name = f"{file.stem}.{class_name}"
    if "asymmetry" in parse_penalties(rest):
        raise RheoscopeError(Message("{name} has no M, so it cannot race with the penalty asymmetry", name=name))
    OWN_ATTENTION[name] = import_class(file, class_name)
    FINGERPRINTS[name] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    check_laws(name, config)
    return name + rest.removeprefix(class_name)


def import_class(file: Path, class_name: str) -> Callable[[Config], nn.Module]:
    """The module class of a file."""
    if not file.is_file():
        raise RheoscopeError(Message("there is no file {file}", file=str(file)))
    spec = spec_from_file_location(f"rheoscope_entrant_{file.stem}", file)
    assert spec is not None  # the suffix is .py
    assert spec.loader is not None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the file does
        raise RheoscopeError(
            Message("cannot import {file}: {reason}", file=str(file), reason=first_line(error))
        ) from error
    found_class = getattr(module, class_name, None)
    if not (isinstance(found_class, type) and issubclass(found_class, nn.Module)):
        classes = [
            key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, nn.Module)
        ]
        raise RheoscopeError(
            Message(
                "{file} has no torch.nn.Module named {name!r}; it has {classes}",
                file=str(file),
                name=class_name,
                classes=", ".join(classes) or Message("none"),
            )
        )
    return found_class


def first_line(error: Exception) -> str:
    """The type and the first line of an error."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def check_laws(name: str, config: Config) -> None:
    """Raise for the first law that a registered module breaks in a model of one layer."""
    if config.form == "encoder-decoder":
        raise RheoscopeError(Message("{name} can replace self-attention of decoders and encoders only", name=name))
    small = config.with_changes(
        vocabulary=LETTERS, depth=1, attention=name, context=min(config.context, LONGEST), dropout=0.0
    )
    for law, holds in LAWS.items():
        try:
            is_valid = holds(small)
        except Exception as error:  # whatever the module does
            raise RheoscopeError(
                Message("{name} breaks the law of {law}: {reason}", name=name, law=law, reason=first_line(error))
            ) from error
        if not is_valid:
            raise RheoscopeError(Message("{name} breaks the law of {law}", name=name, law=law))


def outputs(config: Config, ids: Tensor) -> Tensor:
    """The logits of an initial model."""
    model = initial_model(config, seed=0).eval()
    with torch.no_grad():
        logits: Tensor = model(ids)
    return logits


def example_ids(config: Config) -> Tensor:
    """Two texts as long as the context."""
    return torch.arange(2 * config.context).view(2, -1).mul(7) % LETTERS


def has_shape(config: Config) -> bool:
    """Whether texts of every length have finite outputs of the right shape."""
    ids = example_ids(config)
    lengths = sorted({1, 2, config.context // 2 or 1, config.context})
    return all(
        (logits := outputs(config, ids[:, :n])).shape == (2, n, LETTERS) and bool(logits.isfinite().all())
        for n in lengths
    )


def is_causal(config: Config) -> bool:
    """Whether later tokens leave earlier outputs unchanged. Encoders read in both directions."""
    ids = example_ids(config)
    changed, middle = ids.clone(), config.context // 2
    changed[:, middle:] = (changed[:, middle:] + 1) % LETTERS
    return config.form != "decoder" or is_close(outputs(config, ids)[:, :middle], outputs(config, changed)[:, :middle])


def separates_texts(config: Config) -> bool:
    ids = example_ids(config)
    return is_close(outputs(config, ids)[:1], outputs(config, ids[:1]))


def is_repeatable(config: Config) -> bool:
    model, ids = initial_model(config, seed=0).eval(), example_ids(config)
    with torch.no_grad():
        return is_close(model(ids), model(ids))


def has_gradients(config: Config) -> bool:
    """Whether the loss of random weights has a finite gradient in every parameter."""
    model = initial_model(config, seed=0)
    model(example_ids(config)).square().mean().backward()
    return all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters() if p.requires_grad)


def starts_by_seed(config: Config) -> bool:
    first, second = (dict(initial_model(config, seed=3).named_parameters()) for _ in range(2))
    return all(torch.equal(first[name], second[name]) for name in first)


def is_close(a: Tensor, b: Tensor) -> bool:
    return bool(torch.allclose(a, b, atol=TOLERANCE * float(a.abs().max().clamp(min=1e-6)), rtol=TOLERANCE))


LAWS: dict[str, Callable[[Config], bool]] = {
    Message("shape: one update of the width of the model per token"): has_shape,
    Message("start: the seed determines the initial weights"): starts_by_seed,
    Message("repeatability: the same tokens give the same output"): is_repeatable,
    Message("causality: no output depends on later tokens"): is_causal,
    Message("texts: the texts of a batch are independent"): separates_texts,
    Message("gradient: every parameter has a finite gradient"): has_gradients,
}
"""The laws of an attention module, in the order in which they are checked."""
