"""FLOPs, parameters and memory of a loaded model, from its own weights, masks and MLPs."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from rheoscope.attention.cost import AttentionCost, TransformerCost, attention_cost
from rheoscope.space.head import Heads
from rheoscope.space.view import View


@torch.no_grad()
def model_cost(view: View, n_tokens: int) -> TransformerCost:
    """FLOPs of one forward pass over `n_tokens` tokens, parameters and crossover lengths of a loaded model.

    **Formula** 2 · matrix parameters · tokens for projections, MLPs and unembedding, plus the cost of token pairs under each
    layer's own mask. torch counts the FLOPs of MLPs while they run on one token. Tied embeddings count once.

    **Laws** Equal to `transformer_cost` for the same sizes.

    >>> import rheoscope as rs
    >>> cost = model_cost(rs.load().view, 512)
    >>> cost.training == 3 * cost.forward
    True
    """
    n_projection_parameters = sum(map(projection_parameters, view.layer_heads))
    n_ffn_parameters = sum(ffn_flops(view, layer) for layer in range(view.layers)) // 2
    layer_costs = [layer_attention_cost(heads, n_tokens, view.dtype.itemsize) for heads in view.layer_heads]
    flops_per_pair = sum(2 * heads.n_heads * (heads.W_Q.shape[-1] + heads.W_V.shape[-1]) for heads in view.layer_heads)
    n_unembed_parameters = 0 if view.unembed is None else view.unembed.numel()
    is_tied = view.unembed is not None and view.unembed.data_ptr() == view.embed.data_ptr()
    return TransformerCost(
        parameters=n_projection_parameters
        + n_ffn_parameters
        + view.embed.numel()
        + (0 if is_tied else n_unembed_parameters),
        projections=2 * n_projection_parameters * n_tokens,
        attention=sum(cost.flops for cost in layer_costs),
        ffn=2 * n_ffn_parameters * n_tokens,
        unembedding=2 * n_unembed_parameters * n_tokens,
        crossover=2 * (n_projection_parameters + n_ffn_parameters) / flops_per_pair,
        crossover_projections=2 * n_projection_parameters / flops_per_pair,
    )


def projection_parameters(heads: Heads) -> int:
    """The number of parameters in a layer's query, key, value and output matrices."""
    return sum(W.numel() for W in (heads.W_Q, heads.W_K, heads.W_V, heads.W_O))


def layer_attention_cost(heads: Heads, n_tokens: int, bytes_per_number: int) -> AttentionCost:
    """The attention cost of one layer under its own mask; a number takes `bytes_per_number` bytes."""
    (h, _, d), g = heads.W_Q.shape, len(heads.W_K)
    return attention_cost(
        heads.mechanism, (1, h, n_tokens, d), (1, g, n_tokens, d), heads.W_V.shape[-1], bytes_per_number
    )


def ffn_flops(view: View, layer: int) -> int:
    """FLOPs of an MLP on one token, as counted by torch."""
    with FlopCounterMode(display=False) as counter:
        view.mlps[layer](view.embed[:1].detach())
    return counter.get_total_flops()


def kv_cache_bytes(view: View, n_tokens: int) -> int:
    """Bytes of all keys and values of `n_tokens` tokens."""
    numbers_per_token = sum(len(heads.W_K) * (heads.W_K.shape[-1] + heads.W_V.shape[-1]) for heads in view.layer_heads)
    return numbers_per_token * view.dtype.itemsize * n_tokens


def attention_map_bytes(view: View, n_tokens: int) -> int:
    """Bytes of all attention weights, if they were stored."""
    return sum(layer_attention_cost(heads, n_tokens, view.dtype.itemsize).bytes_weights for heads in view.layer_heads)
