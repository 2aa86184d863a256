"""All seeds of one architecture as one batched model, because a single tiny model leaves a GPU mostly idle.

    a cloud of tokens      (b, n, d)    ─►  (seeds · b, n, d)    seeds are folded into the batch
    a weight matrix        (out, in)    ─►  (seeds, out, in)     one batched product (bmm) for all seeds

Attention, positions, masks and losses see only a larger batch. Only modules with parameters know about seeds.
`PACKED_FORMS` maps each class of such modules to its packed form. A class that is not listed is refused by name.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from rheoscope.attention.definition import MaskLike, query_key_positions
from rheoscope.attention.mask import BooleanMask, Mask, as_mask
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.modules import Attention
from rheoscope.attention.parameters import with_fields, with_tensors
from rheoscope.attention.position import NoPosition
from rheoscope.attention.position_bias import ALiBi
from rheoscope.messages.message import Message
from rheoscope.models.checkpoint import SkipInit
from rheoscope.models.linear_maps import Embedding, Linear
from rheoscope.models.own_attention import OwnAttention
from rheoscope.models.position_modules import LearnedTable, PositionEncoding
from rheoscope.models.projections import Bandwidth
from rheoscope.models.residual_branches import BranchGain
from rheoscope.models.tied_projections import SkewPlanes, SymmetricSkew, TiedPositional
from rheoscope.models.transformer import Transformer, Translator, make_architecture
from rheoscope.shapes import RheoscopeError

Cloud = Float[Tensor, "sb n d"]
PackParameter = Callable[[Tensor], nn.Parameter]
"""From a parameter of the first model (…) to the stack over all models (seeds, …).

Tied parameters give the same stack.
"""


class PackingError(RheoscopeError):
    """Models that cannot be trained as one; they can still be trained one after another."""


class PackedModel(nn.Module):
    """Models of one architecture as one: ids (seeds · b, n) give logits (seeds · b, n, vocabulary).

    The rows of the first seed come first. An encoder-decoder takes its usual inputs (sources, targets and a mask of
    real source tokens), each of shape (seeds · b, …).

    **Laws** Logits and gradients equal those of each model alone, up to rounding. `unpack(i)` returns the i-th
    model unchanged.

    **See also** `learner.make_packed_learner` trains one. `Transformer` and `Translator` are the models to pack.

    >>> from rheoscope.models.config import Config
    >>> models = [Transformer(Config(vocabulary=9, width=8, depth=1, heads=2)) for _ in range(3)]
    >>> PackedModel(models)(torch.tensor([[1, 2], [1, 2], [1, 2]])).shape
    torch.Size([3, 2, 9])
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.configs = [model.config for model in models if isinstance(model, Transformer | Translator)]
        parameters_by_model = [dict(model.named_parameters(remove_duplicate=False)) for model in models]
        if len({tuple((name, p.shape) for name, p in parameters.items()) for parameters in parameters_by_model}) != 1:
            raise PackingError(
                Message("models must have the same parameter shapes to be packed; pack each architecture alone")
            )
        body = copy.deepcopy(models[0])
        stacked_parameters: dict[int, nn.Parameter] = {}
        for name, parameter in body.named_parameters(remove_duplicate=False):
            if id(parameter) not in stacked_parameters:
                stacked_parameters[id(parameter)] = nn.Parameter(
                    torch.stack([parameters[name].detach() for parameters in parameters_by_model])
                )
        packed_body = pack_module(body, lambda parameter: stacked_parameters[id(parameter)])
        assert isinstance(packed_body, Transformer | Translator)  # only its parts were replaced
        self.body = packed_body

    @property
    def n_seeds(self) -> int:
        return len(self.configs)

    @property
    def unembed(self) -> nn.Module:
        """The map from points to logits."""
        return self.body.unembed

    def points(self, *inputs: Tensor, hidden_states: list[Tensor] | None = None) -> Cloud:
        """The points before unembedding.

        `hidden_states` is filled with the embedded points and the points after every half-layer.
        """
        body_points: Callable[..., Tensor] = self.body.points
        return body_points(*inputs) if hidden_states is None else body_points(*inputs, hidden_states=hidden_states)

    def forward(self, *inputs: Tensor) -> Float[Tensor, "sb n v"]:
        logits: Tensor = self.body(*inputs)
        return logits

    @torch.no_grad()
    def unpack(self, index: int) -> Transformer | Translator:
        """One of the models alone, on the CPU, for analyses, observations and checkpoints.

        >>> from rheoscope.models.config import Config
        >>> model = Transformer(Config(vocabulary=9, width=8, depth=1, heads=2))
        >>> torch.equal(PackedModel([model]).unpack(0).unembed.weight, model.unembed.weight)
        True
        """
        with SkipInit():
            model = make_architecture(self.configs[index]).to(next(self.body.parameters()).dtype)
        packed_parameters = dict(self.body.named_parameters(remove_duplicate=False))
        for name, parameter in model.named_parameters():
            parameter.copy_(packed_parameters[name][index])
        packed_buffers = dict(self.body.named_buffers())
        for name, buffer in model.named_buffers():
            buffer.copy_(packed_buffers[name])
        return model


def pack_module(module: nn.Module, pack_parameter: PackParameter) -> nn.Module:
    """The module with every parameter-holding part replaced by its packed form."""
    if isinstance(module, OwnAttention):
        raise PackingError(Message("{module} comes from a file", module=type(module.module).__name__))
    if type(module) in PACKED_FORMS:
        return PACKED_FORMS[type(module)](module, pack_parameter)
    if any(True for _ in module.parameters(recurse=False)):
        raise PackingError(
            Message("{module} has no packed form; add one to PACKED_FORMS", module=type(module).__name__)
        )
    for name, child in module.named_children():
        setattr(module, name, pack_module(child, pack_parameter))
    return module


class PackedLinear(nn.Module):
    """x W_sᵀ + b_s for the rows of every seed s."""

    def __init__(self, module: nn.Linear, pack_parameter: PackParameter) -> None:
        super().__init__()
        self.weight = pack_parameter(module.weight)
        self.bias = None if module.bias is None else pack_parameter(module.bias)

    def forward(self, x: Cloud) -> Float[Tensor, "sb n out"]:
        rows, W = x.reshape(len(self.weight), -1, x.shape[-1]), self.weight.mT
        y = torch.bmm(rows, W) if self.bias is None else torch.baddbmm(self.bias[:, None], rows, W)
        return y.view(*x.shape[:-1], W.shape[-1])


class PackedEmbedding(nn.Module):
    """Row id + s · vocabulary of the concatenated tables of all seeds."""

    def __init__(self, module: nn.Embedding, pack_parameter: PackParameter) -> None:
        super().__init__()
        self.weight = pack_parameter(module.weight)

    def forward(self, ids: Int[Tensor, "sb n"]) -> Cloud:
        n_seeds, vocabulary, _ = self.weight.shape
        offset = vocabulary * torch.arange(n_seeds, device=ids.device)
        return functional.embedding(
            (ids.reshape(n_seeds, -1) + offset[:, None]).view(ids.shape), self.weight.flatten(0, 1)
        )


class PackedRMSNorm(nn.Module):
    """x/rms times the gain of each seed."""

    def __init__(self, module: nn.RMSNorm, pack_parameter: PackParameter) -> None:
        super().__init__()
        self.weight, self.eps = pack_parameter(module.weight), module.eps

    def forward(self, x: Cloud) -> Cloud:
        return combine_per_seed(self.weight, functional.rms_norm(x, x.shape[-1:], None, self.eps), torch.mul)


class PackedLayerNorm(nn.LayerNorm):
    """(x − mean)/sd times the gain of each seed, plus its bias."""

    def __init__(self, module: nn.LayerNorm, pack_parameter: PackParameter) -> None:
        super().__init__(module.normalized_shape, module.eps, elementwise_affine=False)
        self.weight = pack_parameter(module.weight)
        self.bias = None if module.bias is None else pack_parameter(module.bias)

    def forward(self, x: Cloud) -> Cloud:
        y = combine_per_seed(self.weight, functional.layer_norm(x, x.shape[-1:], None, None, self.eps), torch.mul)
        return y if self.bias is None else combine_per_seed(self.bias, y, torch.add)


class PackedGain(nn.Module):
    """Updates times the learned gain of each seed."""

    def __init__(self, module: BranchGain, pack_parameter: PackParameter) -> None:
        super().__init__()
        self.gain = pack_parameter(module.gain)

    def forward(self, update: Cloud) -> Cloud:
        return combine_per_seed(self.gain, update, torch.mul)


class PackedTable(PositionEncoding):
    """x_i + table_s[i] with a learned table per seed."""

    def __init__(self, module: LearnedTable, pack_parameter: PackParameter) -> None:
        super().__init__()
        self.table = pack_parameter(module.table)

    def add_to_embeddings(self, x: Cloud, positions: slice) -> Cloud:
        x_per_seed = x.unflatten(0, (len(self.table), -1))
        return (x_per_seed + self.table[:, None, positions].to(x.dtype)).flatten(0, 1)


def combine_per_seed(
    seed_rows: Float[Tensor, "s #d"], x: Cloud, operation: Callable[[Tensor, Tensor], Tensor]
) -> Cloud:
    """Combine a row or a number per seed with all tokens of that seed."""
    return operation(x.view(len(seed_rows), -1, x.shape[-1]), seed_rows[:, None]).view_as(x)


class PackedAttention(nn.Module):
    """A mechanism with learned tensors. Seeds are folded into the heads, each with its own tensors."""

    def __init__(self, attention: Attention, pack_parameter: PackParameter) -> None:
        super().__init__()
        if len(attention.functions):
            raise PackingError(Message("a score that is a torch module has no packed form"))
        self.learned = nn.ParameterDict(
            {name: pack_parameter(parameter) for name, parameter in attention.learned.items()}
        )
        self.parameter_paths, self.mechanism = (
            attention.parameter_paths,
            PerSeedMechanism({}, **mechanism_fields(attention.mechanism)),
        )

    def current_mechanism(self) -> "PerSeedMechanism":
        """The mechanism with the current parameters."""
        return with_fields(self.mechanism, tensors={self.parameter_paths[name]: x for name, x in self.learned.items()})


TEMPLATE_MECHANISM = Mechanism()
"""The template of each seed's mechanism.

Constructing a mechanism inside a forward pass breaks the graph of torch 2.11.
"""


def mechanism_fields(mechanism: Mechanism) -> dict[str, Any]:
    """The five parts of a mechanism, by name."""
    return {part.name: getattr(mechanism, part.name) for part in fields(TEMPLATE_MECHANISM)}


@final
@dataclass(frozen=True, eq=False)
class PerSeedMechanism(Mechanism):
    """A mechanism with separate tensors for every seed, called on the queries of all seeds.

    A mechanism may have tensors per head, so the h heads of s seeds are treated as s · h heads.
    """

    tensors: dict[str, Float[Tensor, "s ..."]] = field(kw_only=True)

    def __init__(self, tensors: dict[str, Float[Tensor, "s ..."]], **parts: Any) -> None:
        super().__init__(**parts)
        object.__setattr__(self, "tensors", tensors)  # the dataclass is frozen

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: MaskLike = None, lowering: str | None = None) -> Tensor:
        """Attention of each seed with its own tensors."""
        if not isinstance(self.position, ALiBi | NoPosition):
            raise PackingError(Message("a packed mechanism with learned tensors does not support position buckets"))
        n_seeds, n_heads = len(next(iter(self.tensors.values()))), q.shape[1]
        encoding = self.position
        position = ALiBi(encoding.slopes.repeat(n_seeds)) if isinstance(encoding, ALiBi) else encoding
        base_mechanism = with_fields(TEMPLATE_MECHANISM, **mechanism_fields(self) | {"position": position})
        seed_mechanism = with_tensors(
            base_mechanism, {path: tensor_per_head(x, n_heads) for path, x in self.tensors.items()}
        )
        head_mask = None if mask is None else mask_per_head(mask, q, k, n_seeds)
        q, k, v = (fold_seeds_into_heads(x, n_seeds) for x in (q, k, v))
        out = seed_mechanism.attend(q, k, v, head_mask, lowering)
        return out.unflatten(1, (n_seeds, n_heads)).transpose(0, 1).flatten(0, 1)


def fold_seeds_into_heads(x: Shaped[Tensor, "sb h n d"], n_seeds: int) -> Shaped[Tensor, "b sh n d"]:
    """Move seeds from the batch axis to the head axis.

    >>> fold_seeds_into_heads(torch.zeros(6, 4, 5, 8), 3).shape
    torch.Size([2, 12, 5, 8])
    """
    return x.unflatten(0, (n_seeds, -1)).transpose(0, 1).flatten(1, 2)


def mask_per_head(
    mask: Mask | str | Tensor, q: Float[Tensor, "sb h m d"], k: Float[Tensor, "sb g n d"], n_seeds: int
) -> BooleanMask:
    """A mask for texts with seeds in the batch axis, moved to the head axis. Each seed has its own texts.

    >>> from rheoscope.attention.mask import Padding
    >>> real, q = torch.tensor([[True, True], [True, False]]), torch.zeros(2, 1, 2, 4)
    >>> mask_per_head(Padding(real), q, q, n_seeds=2).allowed.int().tolist()
    [[[[1, 1], [1, 1]], [[1, 0], [1, 0]]]]
    """
    allowed = as_mask(mask)(*query_key_positions(q.shape[-2], k.shape[-2], q.device))
    return BooleanMask(fold_seeds_into_heads(allowed.expand(*q.shape[:2], -1, -1), n_seeds))


def tensor_per_head(x: Float[Tensor, "s ..."], n_heads: int) -> Float[Tensor, "sh ..."]:
    """A tensor per seed, shared by its heads or given per head, expanded to every head of every seed.

    >>> [tuple(tensor_per_head(torch.zeros(shape), 4).shape) for shape in ((3, 8, 6), (3, 4, 8, 6), (3,))]
    [(12, 8, 6), (12, 8, 6), (12,)]
    """
    is_per_head = x.ndim in (2, 4) and x.shape[1] == n_heads
    return x.flatten(0, 1) if is_per_head else x.flatten(0, int(x.ndim in (2, 4))).repeat_interleave(n_heads, 0)


def pack_attention(attention: Attention, pack_parameter: PackParameter) -> nn.Module:
    """Unchanged if nothing is learned: then seeds are just a larger batch."""
    return PackedAttention(attention, pack_parameter) if any(True for _ in attention.parameters()) else attention


def stack_parameters(module: nn.Module, pack_parameter: PackParameter) -> nn.Module:
    """Replace the parameters of a module that handles stacked parameters (models, …) itself."""
    for name, parameter in [*module.named_parameters(recurse=False)]:
        setattr(module, name, pack_parameter(parameter))
    return module


PACKED_FORMS: dict[type[nn.Module], Callable[[Any, PackParameter], nn.Module]] = {
    Linear: PackedLinear,
    Embedding: PackedEmbedding,
    nn.RMSNorm: PackedRMSNorm,
    nn.LayerNorm: PackedLayerNorm,
    BranchGain: PackedGain,
    LearnedTable: PackedTable,
    Attention: pack_attention,
    TiedPositional: stack_parameters,
    SymmetricSkew: stack_parameters,
    SkewPlanes: stack_parameters,
    Bandwidth: stack_parameters,
}
"""From a class of parameter-holding modules to its packed form."""
