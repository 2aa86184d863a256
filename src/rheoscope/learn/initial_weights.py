"""Initial weights that are paired: of one seed, every entrant of a race draws the same numbers for the parameters that they share.

The draw of a parameter is a function of (seed, its name), not of how many were drawn before it: an entrant with a matrix more or less
starts all the others as everybody does.
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
    """The model of a config at its initial weights.

    **Laws** the same for the same seed; equal in every parameter of the same name, shape and start to that of another config.

    >>> one, other = (initial_model(Config(vocabulary=9, width=8, depth=1, heads=2, hidden=hidden), 3) for hidden in (16, 24))
    >>> torch.equal(one.stack.blocks[0].attention.read.weight, other.stack.blocks[0].attention.read.weight)
    True
    """
    config = with_mechanism_seed(config, seed)
    with torch.random.fork_rng(devices=[]), SeedInitByName(seed, initialised_parameter_names(config)):
        torch.default_generator.manual_seed(seed)
        return build(config)


def initialised_parameter_names(config: Config) -> list[str]:
    """For whom each draw is, in the order in which a model of this config draws: the parameter, or its number where it is for none.

    A parameter is known by the module that it was made for: some are cut down after they were drawn.
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
    """The config with a mechanism that starts from this seed, where it draws maps of its own and no seed was given."""
    zoo_entry = ZOO.get(config.mechanism)
    if zoo_entry is None or "seed" not in signature(zoo_entry.factory).parameters:
        return config
    return config.with_changes(options={"seed": seed} | config.options)


class RecordInit(TorchFunctionMode):
    """Meanwhile nothing is drawn; what initial weights were to be drawn for is written down, in order."""

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
    """Meanwhile the draws, in order, are those of these names."""

    def __init__(self, seed: int, names: list[str]) -> None:
        super().__init__()
        self.seed, self.names = seed, iter(names)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in INIT_FUNCTIONS:
            digest = hashlib.sha256(f"{self.seed} {next(self.names)}".encode()).digest()
            torch.default_generator.manual_seed(int.from_bytes(digest[:7], "big"))
        return func(*args, **kwargs or {})
