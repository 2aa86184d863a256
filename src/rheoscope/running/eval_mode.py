"""Evaluation mode for the duration of a call: the network keeps the mode that its owner chose."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from typing import Any

from torch import nn

from rheoscope.running.network_walk import modules_of
from rheoscope.running.shared_patch import Undo, shared_patch
from rheoscope.running.stream import ModelDescription
from rheoscope.space.cross_attention import CrossHeads
from rheoscope.space.head import Heads


@contextmanager
def eval_mode(network: nn.Module, modules: Sequence[nn.Module] | None = None) -> Iterator[None]:
    """Inside, no module of the network is in training mode. The mode of every module is restored at the end.

    `modules` are the modules of the network, for callers that enter often. Threads may be inside at the same time.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    >>> with eval_mode(network):
    ...     print(network[1].training)
    False
    >>> network.training, network[1].training
    (True, True)
    """
    with shared_patch((network, "eval"), partial(_stop_training, modules_of(network) if modules is None else modules)):
        yield


def _stop_training(modules: Sequence[nn.Module]) -> Undo:
    """Write the flags themselves: a module may do more in its `train` method, and its attributes are slow to set."""
    training_modules = [vars(module) for module in modules if module.training]
    for attributes in training_modules:
        attributes["training"] = False

    def undo() -> None:
        for attributes in training_modules:
            attributes["training"] = True

    return undo


def description_in_eval_mode(description: ModelDescription, network: nn.Module) -> ModelDescription:
    """The same description, whose projections, gates and MLPs run in evaluation mode."""
    modules = modules_of(network)

    def in_eval_mode(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function, updated=())
        def call(*args: Any) -> Any:
            with eval_mode(network, modules):
                return function(*args)

        return call

    def heads_in_eval_mode(heads: Heads) -> Heads:
        gate = None if heads.gate is None else in_eval_mode(heads.gate)
        return replace(heads, project=in_eval_mode(heads.project), gate=gate)

    return replace(
        description,
        layer_heads=tuple(map(heads_in_eval_mode, description.layer_heads)),
        mlps=tuple(map(in_eval_mode, description.mlps)),
        prediction_head=None if description.prediction_head is None else in_eval_mode(description.prediction_head),
        cross_heads=tuple(
            CrossHeads(heads_in_eval_mode(cross.target_heads), cross.source_norm) for cross in description.cross_heads
        ),
    )
