"""Where the matrices of heads live: the parameters of the network that hold them, and which rows or columns.

A matrix that is a view of a parameter shares its memory. One that is a copy (half precision, reordered heads, latent attention)
belongs to the parameters on which the projection depends, as its gradient shows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rheoscope.space.head import Heads

MATRICES = ("W_Q", "W_K", "W_V", "W_O", "gate", "norm", "output_norm")
"""The maps of a layer whose parameters have a location."""
NamedParameters = Sequence[tuple[str, Tensor]]


def matrix_locations(network: nn.Module, heads: Heads, output_module: nn.Module | None) -> dict[str, str]:
    """Matrix → the expression that holds it, such as `h.0.attn.c_attn.weight[:, 0:768]`. Empty if no parameter holds it.

    Several names joined by · are a product of matrices, and I is the identity. `output_module` has the
    parameter that holds W_O. A layer with adapters is named itself, because its matrix is in no parameter.
    """
    named = [(name, parameter) for name, parameter in network.named_parameters() if parameter.numel()]
    locations = {name: _shared_memory(named, getattr(heads, name)) for name in ("W_Q", "W_K", "W_V")}
    locations["W_O"] = _shared_memory(named, heads.W_O.mT) or _output_location(named, heads, output_module)
    token = _random_token(heads)
    for index, name in enumerate(("W_Q", "W_K", "W_V")):
        W = getattr(heads, name)
        locations[name] = (
            locations[name]
            or _by_gradient(named, lambda index=index: heads.project(token)[index], W)  # type: ignore[misc]
            or _identity(W)
        )
    gate, output_norm = heads.gate, heads.output_norm
    locations["gate"] = "" if gate is None else _by_gradient(named, lambda: gate(token))
    locations["norm"] = ", ".join(_gradients(named, lambda: heads.norm.apply(token), 1))
    locations["output_norm"] = (
        "" if output_norm is None else ", ".join(_gradients(named, lambda: output_norm.apply(token), 1))
    )
    composite_layers = [name for name, module in network.named_modules() if _is_composite(module)]
    return {name: _without_inner_names(location, composite_layers) for name, location in locations.items()}


def _is_composite(module: nn.Module) -> bool:
    """Whether a linear layer consists of other modules, as a layer with adapters does."""
    return hasattr(module, "in_features") and any(True for _ in module.children())


def _without_inner_names(location: str, composite_layers: Sequence[str]) -> str:
    """A product of matrices with the name of each composite layer in place of the parameters inside it.

    >>> _without_inner_names("h.0.q.lora_A.weight · h.0.q.lora_B.weight", ["h.0.q"])
    'h.0.q'
    """
    outer_names = (
        next((layer for layer in composite_layers if name.startswith(f"{layer}.")), name)
        for name in location.split(" · ")
    )
    return " · ".join(dict.fromkeys(outer_names))


def _random_token(heads: Heads) -> Float[Tensor, "1 1 d"]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, 1, heads.W_Q.shape[-2], generator=generator).to(heads.W_Q.device, heads.W_Q.dtype)


def _shared_memory(named: NamedParameters, W: Float[Tensor, "h d k"]) -> str:
    """The parameter whose memory contains a matrix, with its rows or columns; empty if there is none."""
    if W.data_ptr() == 0:
        return ""
    for name, parameter in named:
        offset = W.data_ptr() - parameter.data_ptr()
        if not 0 <= offset < parameter.nbytes or parameter.dtype != W.dtype or parameter.device != W.device:
            continue
        if parameter.ndim != 2 or not parameter.is_contiguous():
            return name
        return name + _slice_of_view(parameter, W, offset // parameter.element_size())
    return ""


def _slice_of_view(parameter: Float[Tensor, "rows columns"], W: Float[Tensor, "h d k"], offset: int) -> str:
    """Which rows (nn.Linear) or columns (Conv1D) of a parameter are the outputs of a view of it."""
    n_heads, _, width = W.shape
    head_stride, input_stride, output_stride = W.stride()
    elements = (offset + torch.arange(n_heads)[:, None] * head_stride + torch.arange(width) * output_stride).flatten()
    n_columns, axis = parameter.shape[1], 0 if input_stride == 1 else 1
    indices = elements % n_columns if axis else elements // n_columns
    is_used = torch.zeros(parameter.shape[axis], dtype=torch.bool)
    is_used[indices] = True
    return slice_text(is_used, axis)


def slice_text(is_used: Bool[Tensor, " n"], axis: int) -> str:
    """Some rows (axis 0) or columns (axis 1) as Python writes them. Blocks that repeat are taken from an unflattened axis.

    >>> used = torch.tensor([True, True, False, True, True, False])
    >>> slice_text(used, 0), slice_text(used[:3], 1), slice_text(used[:2], 0)
    ('.unflatten(0, (2, 3))[:, 0:2]', '[:, 0:2]', '')
    """
    colons = ":, " * axis
    starts, stops = _runs(is_used)
    if len(starts) == 0 or bool(is_used.all()):
        return ""
    if len(starts) == 1:
        return f"[{colons}{int(starts[0])}:{int(stops[0])}]"
    n_blocks, n = len(starts), len(is_used)
    period = n // n_blocks
    blocks = is_used[: n_blocks * period].view(n_blocks, period)
    if n % n_blocks == 0 and bool((blocks == blocks[0]).all()):
        return f".unflatten({axis}, ({n_blocks}, {period}))[{colons}:, {int(starts[0])}:{int(stops[0])}]"
    return f"[{colons}{int(starts[0])}…{int(stops[-1])}]"


def _runs(is_used: Bool[Tensor, " n"]) -> tuple[Int[Tensor, " r"], Int[Tensor, " r"]]:
    """The first index of every run of True, and the index after its last."""
    steps = torch.nn.functional.pad(is_used.int(), (1, 1)).diff()
    return (steps == 1).nonzero().flatten(), (steps == -1).nonzero().flatten()


def _output_location(named: NamedParameters, heads: Heads, module: nn.Module | None) -> str:
    """The weight of a module that is W_O, with its factor (residual scales); else its only weight."""
    own = set() if module is None else {id(x) for x in module.parameters() if x.ndim == 2}
    weights = [(name, x) for name, x in named if id(x) in own]
    if module is not None and _is_composite(module) and weights:
        return weights[0][0]
    for name, parameter in weights:
        factor = _constant_ratio(heads.W_O.flatten(0, 1), parameter)
        if factor is not None:
            return _with_factor(factor, name)
    return weights[0][0] if len(weights) == 1 else ""


@torch.no_grad()
def _constant_ratio(W: Float[Tensor, "m n"], parameter: Tensor) -> float | None:
    """The number c with W = c times a parameter or its transpose; None if there is none."""
    for candidate in (parameter, parameter.mT):
        if candidate.shape == W.shape:
            candidate = candidate.to(W)
            index = int(candidate.abs().argmax())
            ratio = float(W.flatten()[index] / candidate.flatten()[index])
            if torch.allclose(W, ratio * candidate, rtol=1e-4):
                return ratio if abs(ratio - 1) > 1e-4 else 1.0
    return None


def _identity(W: Float[Tensor, "h d k"]) -> str:
    """I for the identity."""
    d, k = W.shape[-2:]
    return "I" if d == k and bool((torch.eye(d, dtype=W.dtype, device=W.device) == W).all()) else ""


def _by_gradient(named: NamedParameters, run: Callable[[], Tensor], W: Tensor | None = None) -> str:
    """The matrices on which a result depends, in the order of the network, each with the rows or columns that it reads.

    If there is one, and `W` (h, d, k) is a multiple of it, its factor comes first.
    """
    gradients, parameters = _gradients(named, run, 2), dict(named)
    used = {name: _used_part(gradient) for name, gradient in gradients.items()}
    location = " · ".join(name + slice_text(is_used, axis) for name, (is_used, axis) in used.items())
    if W is None or len(used) != 1:
        return location
    ((name, (is_used, axis)),) = used.items()
    part = parameters[name].index_select(axis, is_used.nonzero().flatten().to(parameters[name].device))
    return _with_factor(_constant_ratio(W.mT.flatten(0, 1), part), location)


def _gradients(named: NamedParameters, run: Callable[[], Tensor], min_ndim: int) -> dict[str, Tensor]:
    """The gradient of a random sum of a result, for every parameter on which it depends."""
    trainable: list[tuple[str, Any]] = [(name, x) for name, x in named if x.requires_grad and x.ndim >= min_ndim]
    with torch.enable_grad():
        result = run()
        if not trainable or not result.requires_grad:
            return {}
        cotangent = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).to(result)
        gradients = torch.autograd.grad((result * cotangent).sum(), [x for _, x in trainable], allow_unused=True)
    by_name = zip((name for name, _ in trainable), gradients, strict=True)
    return {name: gradient for name, gradient in by_name if gradient is not None and bool(gradient.any())}


def _used_part(gradient: Tensor) -> tuple[Bool[Tensor, " n"], int]:
    """The rows (axis 0) or columns (axis 1) of a matrix with a gradient."""
    if gradient.ndim != 2:
        return torch.ones(len(gradient), dtype=torch.bool), 0
    rows, columns = (gradient.ne(0).any(axis).cpu() for axis in (1, 0))
    return (columns, 1) if bool(rows.all()) else (rows, 0)


def _with_factor(factor: float | None, location: str) -> str:
    return location if factor in (1, None) else f"{factor:.4g} · {location}"
