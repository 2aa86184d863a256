"""All seeds of one model as one batched model: tiny models one after another leave a GPU idle, twelve at once fill it.

    a cloud of tokens           (b, n, d)      ─►  (seeds · b, n, d)      seeds are folded into the batch
    a matrix of weights         (out, in)      ─►  (seeds, out, in)       one product for all seeds (bmm)

So attention, positions, masks and losses see nothing but a larger batch; only modules that hold parameters know of seeds. `PACKED` says
how each kind does: one class, one line. A kind that is not there is refused by name.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from rheoscope.attention.definition import Masked, positions
from rheoscope.attention.mask import Mask, Table, as_mask
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.modules import Attention
from rheoscope.attention.parameters import with_parts, with_tensors
from rheoscope.attention.position import ALiBi, NoPosition
from rheoscope.models.checkpoint import Undrawn
from rheoscope.models.position_modules import LearnedTable, Places
from rheoscope.models.projections import SymmetricSkew, TiedPositional
from rheoscope.models.transformer import Embedding, Linear, Transformer, Translator, architecture
from rheoscope.shapes import RheoscopeError

Cloud = Float[Tensor, "sb n d"]
Hold = Callable[[Tensor], nn.Parameter]
"""From a parameter of the first model to that of all, one below the other: (…) to (seeds, …). The same one for a tied one."""


class CannotPack(RheoscopeError):
    """Why models cannot be trained as one; one after another they can."""


class Packed(nn.Module):
    """Models of one shape as one: ids (seeds · b, n), the rows of the first seed first, give logits (seeds · b, n, vocabulary).

    An encoder-decoder takes what it takes alone, sources, targets and which tokens of the sources are real, each (seeds · b, …).

    **Answers** what each of them would, in the time of little more than one on a machine that one alone leaves idle.

    **Laws** logits and gradients are those of each model alone, to rounding; `unpack(i)` gives back the i-th as it was.

    **Siblings** `learner.packed_learner` trains one; `Transformer` and `Translator` are what is packed.

    >>> from rheoscope.models.config import Config
    >>> models = [Transformer(Config(vocabulary=9, width=8, depth=1, heads=2)) for _ in range(3)]
    >>> Packed(models)(torch.tensor([[1, 2], [1, 2], [1, 2]])).shape
    torch.Size([3, 2, 9])
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.configs = [model.config for model in models if isinstance(model, Transformer | Translator)]
        named = [dict(model.named_parameters(remove_duplicate=False)) for model in models]
        if len({tuple((name, p.shape) for name, p in one.items()) for one in named}) != 1:
            raise CannotPack("only models of one shape are packed, got several; pack each shape by itself")
        body = copy.deepcopy(models[0])
        held: dict[int, nn.Parameter] = {}
        for name, own in body.named_parameters(remove_duplicate=False):
            if id(own) not in held:
                held[id(own)] = nn.Parameter(torch.stack([one[name].detach() for one in named]))
        packed = packed_module(body, lambda own: held[id(own)])
        assert isinstance(packed, Transformer | Translator)  # its parts are others, it is still one
        self.body = packed

    @property
    def seeds(self) -> int:
        return len(self.configs)

    @property
    def unembed(self) -> nn.Module:
        """From points to logits."""
        return self.body.unembed

    def points(self, *given: Tensor, hidden_states: list[Tensor] | None = None) -> Cloud:
        """What is unembedded; `hidden_states` is filled with the points before every layer, and after the last."""
        own: Callable[..., Tensor] = self.body.points
        return own(*given) if hidden_states is None else own(*given, hidden_states=hidden_states)

    def forward(self, *given: Tensor) -> Float[Tensor, "sb n v"]:
        logits: Tensor = self.body(*given)
        return logits

    @torch.no_grad()
    def unpack(self, at: int) -> Transformer | Translator:
        """One of the models by itself, on the CPU: for looks, checkpoints and every analysis.

        >>> from rheoscope.models.config import Config
        >>> model = Transformer(Config(vocabulary=9, width=8, depth=1, heads=2))
        >>> torch.equal(Packed([model]).unpack(0).unembed.weight, model.unembed.weight)
        True
        """
        with Undrawn():
            model = architecture(self.configs[at]).to(next(self.body.parameters()).dtype)
        mine = dict(self.body.named_parameters(remove_duplicate=False))
        for name, own in model.named_parameters():
            own.copy_(mine[name][at])
        return model


def packed_module(module: nn.Module, hold: Hold) -> nn.Module:
    """The module with every part that holds parameters in its packed form."""
    if type(module) in PACKED:
        return PACKED[type(module)](module, hold)
    if any(True for _ in module.parameters(recurse=False)):
        raise CannotPack(f"no packed form of {type(module).__name__} is known; add a line to PACKED")
    for name, child in module.named_children():
        setattr(module, name, packed_module(child, hold))
    return module


class PackedLinear(nn.Module):
    """x W_sᵀ + b_s for the rows of every seed s."""

    def __init__(self, plain: nn.Linear, hold: Hold) -> None:
        super().__init__()
        self.weight = hold(plain.weight)
        self.bias = None if plain.bias is None else hold(plain.bias)

    def forward(self, x: Cloud) -> Float[Tensor, "sb n out"]:
        rows, W = x.reshape(len(self.weight), -1, x.shape[-1]), self.weight.mT
        y = torch.bmm(rows, W) if self.bias is None else torch.baddbmm(self.bias[:, None], rows, W)
        return y.view(*x.shape[:-1], -1)


class PackedEmbedding(nn.Module):
    """Row id + s · vocabulary of the tables of all seeds, one below the other."""

    def __init__(self, plain: nn.Embedding, hold: Hold) -> None:
        super().__init__()
        self.weight = hold(plain.weight)

    def forward(self, ids: Int[Tensor, "sb n"]) -> Cloud:
        seeds, vocabulary, _ = self.weight.shape
        offset = vocabulary * torch.arange(seeds, device=ids.device)
        return functional.embedding(
            (ids.reshape(seeds, -1) + offset[:, None]).view(ids.shape), self.weight.flatten(0, 1)
        )


class PackedRMSNorm(nn.Module):
    """x/rms times the gain of its seed."""

    def __init__(self, plain: nn.RMSNorm, hold: Hold) -> None:
        super().__init__()
        self.weight, self.eps = hold(plain.weight), plain.eps

    def forward(self, x: Cloud) -> Cloud:
        return per_seed(self.weight, functional.rms_norm(x, x.shape[-1:], None, self.eps), torch.mul)


class PackedLayerNorm(nn.LayerNorm):
    """(x − mean)/sd times the gain of its seed, plus its bias."""

    def __init__(self, plain: nn.LayerNorm, hold: Hold) -> None:
        super().__init__(plain.normalized_shape, plain.eps, elementwise_affine=False)
        self.weight = hold(plain.weight)
        self.bias = None if plain.bias is None else hold(plain.bias)

    def forward(self, x: Cloud) -> Cloud:
        y = per_seed(self.weight, functional.layer_norm(x, x.shape[-1:], None, None, self.eps), torch.mul)
        return y if self.bias is None else per_seed(self.bias, y, torch.add)


class PackedTable(Places):
    """x_i + table_s[i], trained."""

    def __init__(self, plain: LearnedTable, hold: Hold) -> None:
        super().__init__()
        self.table = hold(plain.table)

    def embedded(self, x: Cloud, at: slice) -> Cloud:
        apart = x.unflatten(0, (len(self.table), -1))
        return (apart + self.table[:, None, at].to(x.dtype)).flatten(0, 1)


def per_seed(own: Float[Tensor, "s d"], x: Cloud, of: Callable[[Tensor, Tensor], Tensor]) -> Cloud:
    """A row of each seed put together with all of its tokens."""
    return of(x.view(len(own), -1, x.shape[-1]), own[:, None]).view_as(x)


class PackedAttention(nn.Module):
    """A mechanism that learns: the seeds are told apart as heads are, each with tensors of its own."""

    def __init__(self, plain: Attention, hold: Hold) -> None:
        super().__init__()
        if len(plain.functions):
            raise CannotPack("a score that is a module of its own has no packed form")
        self.learned = nn.ParameterDict({name: hold(own) for name, own in plain.learned.items()})
        self.paths, self.mechanism = plain.paths, OfSeeds({}, **parts(plain.mechanism))

    def current(self) -> "OfSeeds":
        """The mechanism with the parameters as they are now."""
        return with_parts(self.mechanism, tensors={self.paths[name]: x for name, x in self.learned.items()})


ONE = Mechanism()
"""What the mechanism of each seed is made from: one that is constructed inside a forward breaks the graph of torch 2.11."""


def parts(mechanism: Mechanism) -> dict[str, Any]:
    """The five of any mechanism, by name."""
    return {part.name: getattr(mechanism, part.name) for part in fields(ONE)}


@final
@dataclass(frozen=True, eq=False)
class OfSeeds(Mechanism):
    """A mechanism with tensors of its own for every seed, called as a mechanism is, on the queries of all seeds.

    A mechanism may learn something for every head; so h heads of s seeds are s · h heads of one.
    """

    tensors: dict[str, Float[Tensor, "s ..."]] = field(kw_only=True)

    def __init__(self, tensors: dict[str, Float[Tensor, "s ..."]], **parts: Any) -> None:
        super().__init__(**parts)
        object.__setattr__(self, "tensors", tensors)  # frozen from now on

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Masked = None, lowering: str | None = None) -> Tensor:
        """Each seed by its own tensors."""
        if not isinstance(self.position, ALiBi | NoPosition):
            raise CannotPack("a packed mechanism that learns takes no table of buckets")
        seeds, heads = len(next(iter(self.tensors.values()))), q.shape[1]
        at = self.position
        position = ALiBi(at.slopes.repeat(seeds)) if isinstance(at, ALiBi) else at
        one = with_parts(ONE, **parts(self) | {"position": position})
        mine = with_tensors(one, {path: of_each_head(x, heads) for path, x in self.tensors.items()})
        permitted = None if mask is None else for_each_head(mask, q, k, seeds)
        q, k, v = (seeds_as_heads(x, seeds) for x in (q, k, v))
        out = mine.attend(q, k, v, permitted, lowering)
        return out.unflatten(1, (seeds, heads)).transpose(0, 1).flatten(0, 1)


def seeds_as_heads(x: Shaped[Tensor, "sb h n d"], seeds: int) -> Shaped[Tensor, "b sh n d"]:
    """Seeds that are folded into the batch, folded into the heads instead.

    >>> seeds_as_heads(torch.zeros(6, 4, 5, 8), 3).shape
    torch.Size([2, 12, 5, 8])
    """
    return x.unflatten(0, (seeds, -1)).transpose(0, 1).flatten(1, 2)


def for_each_head(
    mask: Mask | str | Tensor, q: Float[Tensor, "sb h m d"], k: Float[Tensor, "sb g n d"], seeds: int
) -> Table:
    """A mask of texts whose seeds are folded into the batch, where they are folded into the heads: each seed has texts of its own.

    >>> from rheoscope.attention.mask import Padding
    >>> real, q = torch.tensor([[True, True], [True, False]]), torch.zeros(2, 1, 2, 4)
    >>> for_each_head(Padding(real), q, q, seeds=2).permitted.int().tolist()
    [[[[1, 1], [1, 1]], [[1, 0], [1, 0]]]]
    """
    permitted = as_mask(mask)(*positions(q.shape[-2], k.shape[-2], q.device))
    return Table(seeds_as_heads(permitted.expand(*q.shape[:2], -1, -1), seeds))


def of_each_head(x: Float[Tensor, "s ..."], heads: int) -> Float[Tensor, "sh ..."]:
    """What a seed shares among its heads, or has for each of them, for every head of every seed.

    >>> of_each_head(torch.zeros(3, 8, 6), 4).shape, of_each_head(torch.zeros(3, 4, 8, 6), 4).shape, of_each_head(torch.zeros(3), 4).shape
    (torch.Size([12, 8, 6]), torch.Size([12, 8, 6]), torch.Size([12]))
    """
    own = x.ndim in (2, 4) and x.shape[1] == heads
    return x.flatten(0, 1) if own else x.flatten(0, int(x.ndim in (2, 4))).repeat_interleave(heads, 0)


def packed_attention(plain: Attention, hold: Hold) -> nn.Module:
    """As it is where nothing is learned: a batch is a batch."""
    return PackedAttention(plain, hold) if any(True for _ in plain.parameters()) else plain


def stacked(plain: nn.Module, hold: Hold) -> nn.Module:
    """A module that knows by itself what to do with parameters of several models, (models, …)."""
    for name, own in [*plain.named_parameters(recurse=False)]:
        setattr(plain, name, hold(own))
    return plain


PACKED: dict[type[nn.Module], Callable[[Any, Hold], nn.Module]] = {
    Linear: PackedLinear,
    Embedding: PackedEmbedding,
    nn.RMSNorm: PackedRMSNorm,
    nn.LayerNorm: PackedLayerNorm,
    LearnedTable: PackedTable,
    Attention: packed_attention,
    TiedPositional: stacked,
    SymmetricSkew: stacked,
}
"""From a class that holds parameters to its packed form."""
