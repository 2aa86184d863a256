"""Paired initial weights: with the same seed, all entrants draw the same numbers for the parameters that they share.

The draw of a parameter is a function of the seed and the parameter's name, not of the draws before it. An entrant
with an additional matrix starts all its other parameters like the rest.
"""

import hashlib
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from rheoscope.attention.zoo import ZOO
from rheoscope.models.checkpoint import INIT_FUNCTIONS
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer, Translator, build


def initial_model(config: Config, seed: int) -> Transformer | Translator:
    """A model at its initial weights.

    **Laws** The same seed gives the same weights. Two configs agree in every parameter of the same name, shape and
    initialisation.

    >>> narrow, wide = (initial_model(Config(vocabulary=9, width=8, depth=1, heads=2, hidden=n), 3) for n in (16, 24))
    >>> torch.equal(narrow.stack.blocks[0].attention.read.weight, wide.stack.blocks[0].attention.read.weight)
    True
    """
    config = with_mechanism_seed(config, seed)
    with torch.random.fork_rng(devices=[]), SeedInitByName(seed, initialised_parameter_names(config)):
        torch.default_generator.manual_seed(seed)
        return build(config)


def initialised_parameter_names(config: Config) -> list[str]:
    """The parameter that each draw initialises, in the order of the draws, or a number for a draw without a parameter.

    A parameter is identified by the module that registered it first, because some are cut down after they were
    drawn.
    """
    owners: dict[int, tuple[nn.Module, str]] = {}
    hook = register_module_parameter_registration_hook(
        lambda module, name, parameter: owners.setdefault(id(parameter), (module, name)) and None
    )
    try:
        with torch.device("meta"), RecordInit() as recorder:
            module_names = {id(module): name for name, module in build(config).named_modules()}
    finally:
        hook.remove()
    draw_owners = [owners.get(id(parameter)) for parameter in recorder.tensors]
    return [
        f"{index}" if owner is None else f"{module_names.get(id(owner[0]), index)}.{owner[1]}"
        for index, owner in enumerate(draw_owners)
    ]


def with_mechanism_seed(config: Config, seed: int) -> Config:
    """The config with this seed for its mechanism, if the mechanism draws its own maps and has no seed yet."""
    zoo_entry = ZOO.get(config.mechanism)
    if zoo_entry is None or "seed" not in signature(zoo_entry.factory).parameters:
        return config
    return config.with_changes(options={"seed": seed} | config.options)


class RecordInit(TorchFunctionMode):
    """A mode in which nothing is drawn; it records the tensors to be initialised, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in INIT_FUNCTIONS:
            tensor: Tensor = args[0] if args else (kwargs or {})["tensor"]
            self.tensors.append(tensor)
            return tensor
        return func(*args, **kwargs or {})


class SeedInitByName(TorchFunctionMode):
    """A mode that seeds each draw, in order, by the corresponding name."""

    def __init__(self, seed: int, names: list[str]) -> None:
        super().__init__()
        self.seed, self.names = seed, iter(names)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in INIT_FUNCTIONS:
            digest = hashlib.sha256(f"{self.seed} {next(self.names)}".encode()).digest()
            torch.default_generator.manual_seed(int.from_bytes(digest[:7], "big"))
        return func(*args, **kwargs or {})
