"""The model of a network that is being trained: proved once, and described again only where its View does not follow the weights.

The matrices of a View are usually views of the network's own tensors, so they change with every optimiser step. Copies do not:
float32 copies of half-precision weights, and the effective weights of adapters. Such a model is described again at each check.

torch.compile, DistributedDataParallel and FullyShardedDataParallel wrap the network, which is found inside. Sharded weights are
collected in a replica on the CPU of the first process.
"""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rheoscope.attention.parameters import tensors_by_path
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.models.transformer import Transformer, Translator
from rheoscope.models.transformer import build as build_native
from rheoscope.opening import load
from rheoscope.running.encoder_decoder import EncoderDecoder
from rheoscope.running.eval_mode import eval_mode
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.view import View


class LiveModel:
    """The model of a network in training. `current()` is the model with its current weights."""

    def __init__(self, network: nn.Module, tokenizer: Any = None) -> None:
        self.network, self.tokenizer = network, tokenizer
        self._model: RunnableModel | None = None
        self._replica: nn.Module | None = None
        if not is_sharded(network):
            self.current()  # a network that cannot be opened raises before the training starts

    def current(self) -> RunnableModel | None:
        """The model with its current weights; None in a process that does not measure. Every process calls it at the same step."""
        network = self._readable_network()
        if network is None:
            return None
        with undisturbed(network):
            if self._model is None:
                self._model = open_once(network, self.tokenizer)
            elif not is_live(self._model):
                self._model = describe_again(self._model)
        return self._model

    def _readable_network(self) -> Any:
        """The network with whole weights: itself, or in the first process the replica of a sharded one."""
        if not is_sharded(self.network):
            return unwrap(self.network) if is_first_process() else None
        weights = gather_weights(self.network)  # all processes take part
        if not is_first_process():
            return None
        if self._replica is None:
            self._replica = build_replica(unwrap(self.network))
        self._replica.load_state_dict(weights, strict=False)  # tied weights are gathered once
        return self._replica


def open_once(network: nn.Module, tokenizer: Any) -> RunnableModel:
    """The proved model of a network, without the check that its weights have not changed."""
    model = load(network, tokenizer=tokenizer)
    if isinstance(model, EncoderDecoder):
        has_encoder = hasattr(network, "get_encoder")
        advice = Advice("rs.Monitor(network.get_encoder(), texts=texts)") if has_encoder else None
        raise RheoscopeError(
            Message("the monitor needs a model with a single stack of layers, got an encoder-decoder"), advice
        )
    return model.without_check()


def describe_again(model: RunnableModel) -> RunnableModel:
    """The model with the current weights of its network, which are not proved again."""
    if isinstance(model.network, Transformer | Translator):
        from rheoscope.models.build_view import describe_model as describe_native

        return describe_native(model.network, model.tokenizer, model.view.name)
    from rheoscope.pretrained.build_view import describe_model

    return describe_model(model.network, model.tokenizer, model.view.name)


def is_live(model: RunnableModel) -> bool:
    """Whether every tensor of the View shares its memory with the network, so that it follows the weights."""
    tensors = [*model.network.parameters(), *model.network.buffers()]
    memory = {x.untyped_storage().data_ptr() for x in tensors}
    return all(x.untyped_storage().data_ptr() in memory for x in view_tensors(model.view))


def view_tensors(view: View) -> Iterator[Tensor]:
    """The tensors that describe the heads, the final norm and the vocabulary."""
    for part in (*view.layer_heads, view.final_norm):
        yield from tensors_by_path(part).values()
    yield from (x for x in (view.embed, view.unembed) if x is not None and x.numel())


def unwrap(network: Any) -> Any:
    """The network inside torch.compile, data parallelism and sharding.

    >>> linear = nn.Linear(2, 2)
    >>> unwrap(nn.DataParallel(linear)) is linear
    True
    """
    wrappers: tuple[Any, ...] = (DistributedDataParallel, nn.DataParallel, *sharding_wrappers())
    while True:
        if isinstance(network, wrappers):
            network = network.module
        elif hasattr(network, "_orig_mod"):
            network = network._orig_mod
        else:
            return network


def sharding_wrappers() -> tuple[type, ...]:
    """The class that shards a network by wrapping it, in a program with several processes."""
    if not (dist.is_available() and dist.is_initialized()):
        return ()
    from torch.distributed.fsdp import FullyShardedDataParallel

    return (FullyShardedDataParallel,)


def is_sharded(network: nn.Module) -> bool:
    """Whether this process holds only a part of the weights."""
    wrappers = sharding_wrappers()
    if not wrappers:
        return False
    from torch.distributed.tensor import DTensor

    has_shards = any(isinstance(x, DTensor) for x in network.parameters())
    return has_shards or any(isinstance(module, wrappers) for module in network.modules())


def is_first_process() -> bool:
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def gather_weights(network: nn.Module) -> dict[str, Tensor]:
    """Copies of the whole weights and buffers on the CPU of the first process, by their names in the network itself."""
    with ExitStack() as stack:
        if any(isinstance(module, sharding_wrappers()) for module in network.modules()):
            from torch.distributed.fsdp import FullyShardedDataParallel

            stack.enter_context(FullyShardedDataParallel.summon_full_params(network, writeback=False))
        from torch.distributed.tensor import DTensor

        tensors = ((name, x.full_tensor() if isinstance(x, DTensor) else x) for name, x in named_tensors(network))
        return {name: x.detach().cpu().clone() for name, x in tensors if is_first_process()}


def named_tensors(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight and buffer, by its name without wrappers."""
    for name, x in (*network.named_parameters(), *network.named_buffers()):
        yield name.replace("_fsdp_wrapped_module.", "").replace("_orig_mod.", "").removeprefix("module."), x


def build_replica(network: Any) -> nn.Module:
    """A network on the CPU with the architecture of a sharded one, and initial weights."""
    from torch.distributed.fsdp import FSDPModule

    original: Any = next(kind for kind in type(network).__mro__ if not issubclass(kind, FSDPModule))
    with torch.random.fork_rng(devices=[]):
        if issubclass(original, Transformer | Translator):
            return build_native(network.config).eval()
        replica: nn.Module = original(network.config)
        return replica.eval()


@contextmanager
def undisturbed(network: nn.Module) -> Iterator[None]:
    """Inside, nothing that is done with a network affects its training: no gradients, no dropout, no autocast, no compiled code.

    The mode of every module, the random state and the compiled code of the training are as before afterwards.
    """
    weights = list(network.parameters())
    gpus = sorted({x.device.index for x in weights if x.device.type == "cuda"})
    with ExitStack() as stack:
        for kind in sorted({x.device.type for x in weights}):
            stack.enter_context(torch.autocast(kind, enabled=False))
        for context in (torch.random.fork_rng(gpus), torch.no_grad(), eager_code(), eval_mode(network)):
            stack.enter_context(context)
        yield


def eager_code() -> AbstractContextManager[Any]:
    """Inside, a compiled network runs as it was written. Without a compiler in the process nothing is compiled."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
