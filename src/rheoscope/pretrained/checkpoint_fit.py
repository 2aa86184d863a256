"""Do the weights of a checkpoint fit its config? What the stream needs must be there; what is no part of it is named."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from rheoscope.pretrained.families import family_of
from rheoscope.shapes import RheoscopeError


@torch.no_grad()
def fitted(source: str | Path, network: Any, info: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """The network that was loaded, and the names of weights that it is read without.

    Refused by name are weights that the stream needs and that are missing or of another shape, those of a layer that the
    config does not have, and those that a module of the stream has no place for (a bias that the config denies).
    Named and left out is the rest: a pooler or a classifier that is missing, a head or an adapter that nothing reads.
    An encoder whose language-model head is missing becomes the bare encoder.
    """
    shapes = {name: f"{name} {tuple(there)} for {tuple(asked)}" for name, there, asked in info["mismatched_keys"]}
    missing, extra = sorted(set(info["missing_keys"]) - set(shapes)), sorted(info["unexpected_keys"])
    beside = _beside(network, extra)
    encoder = family_of(network.config).describe(network).encoder
    needed = _needed(network, encoder, [*missing, *shapes, *beside.values()])
    _refuse(source, "missing", [name for name in missing if name in needed])
    _refuse(source, "of another shape", [shapes[name] for name in sorted(shapes) if name in needed])
    _refuse(source, "of a further layer", _further(extra, network.config.num_hidden_layers))
    _refuse(source, "without a place", [name for name in extra if beside.get(name) in needed])
    lost = [*missing, *shapes]
    _silence(network, lost)
    return _read(network, encoder, lost), tuple(sorted([*lost, *extra]))


def _refuse(source: str | Path, what: str, names: list[str]) -> None:
    if names:
        more = ", …" if len(names) > 3 else ""
        raise RheoscopeError(
            f"the weights of {source} do not fit its config ({what}: {', '.join(names[:3])}{more}); get both again"
        )


def _further(extra: Iterable[str], depth: int) -> list[str]:
    layers = [(name, re.search(r"\b(?:h|layers?)\.(\d+)\.", name)) for name in extra]
    return [name for name, at in layers if at and int(at[1]) >= depth]


def _beside(network: Any, extra: Iterable[str]) -> dict[str, str]:
    """For weights of the file whose module is there, but not they: a weight that this module does have."""
    modules = dict(network.named_modules())
    parents = {name: name.rpartition(".")[0] for name in extra}
    own = {
        name: next((leaf for leaf, _ in modules[parent].named_parameters(recurse=False)), None)
        for name, parent in parents.items()
        if parent in modules
    }
    return {name: f"{parents[name]}.{leaf}" for name, leaf in own.items() if leaf is not None}


def _needed(network: Any, encoder: bool, names: list[str]) -> set[str]:
    """Those that the last point of the stream depends on, or the logits of a decoder: asked of autograd, on one token."""
    held = dict(network.named_parameters(remove_duplicate=False))
    known = [name for name in names if name in held and held[name].requires_grad]
    if known:
        with torch.enable_grad():
            ids = torch.tensor([[network.get_input_embeddings().num_embeddings - 1]])
            last = network.base_model(input_ids=ids, use_cache=False).last_hidden_state
            head = None if encoder else network.get_output_embeddings()
            seen = last if head is None else head(last)
            found = torch.autograd.grad(seen.sum(), [held[name] for name in known], allow_unused=True)
        unused = {name for name, gradient in zip(known, found, strict=True) if gradient is None}
    return set(names) - unused if known else set(names)


def _silence(network: Any, lost: Iterable[str]) -> None:
    """Zeros for what was drawn at random in the place of lost weights: one checkpoint has one fingerprint."""
    held = dict(network.named_parameters(remove_duplicate=False))
    for name in lost:
        held[name].zero_()


def _read(network: Any, encoder: bool, lost: Iterable[str]) -> Any:
    """The bare encoder where weights of its language-model head are lost: it would say logits that nobody trained."""
    prefix, head = f"{network.base_model_prefix}.", network.get_output_embeddings()
    bare = encoder and head is not None and any(not name.startswith(prefix) for name in lost)
    return network.base_model if bare else network
