"""What a model costs on so many tokens, counted on its own weights, masks and MLPs."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from rheoscope.attention.cost import AttentionCost, TransformerCost, attention_cost
from rheoscope.space.head import Heads
from rheoscope.space.view import View


@torch.no_grad()
def model_cost(view: View, tokens: int) -> TransformerCost:
    """FLOPs of one forward over `tokens` tokens, parameters and crossover lengths of a model as it is.

    **Formula** 2 · matrix parameters · tokens for projections, MLPs and unembedding, and what lies between pairs of tokens under each
    layer's own mask. MLPs are counted by torch while they run on one token. Embeddings and unembeddings count once if tied.

    **Laws** equal to `transformer_cost` of the same sizes.

    >>> import rheoscope as rs
    >>> found = model_cost(rs.load().view, 512)
    >>> found.training == 3 * found.forward
    True
    """
    of_projections = sum(map(projections, view.blocks))
    of_ffn = sum(ffn_flops(view, layer) for layer in range(view.layers)) // 2
    between = [pairs(heads, tokens, view.dtype.itemsize) for heads in view.blocks]
    of_pairs = sum(2 * heads.count * (heads.W_Q.shape[-1] + heads.W_V.shape[-1]) for heads in view.blocks)
    words = 0 if view.unembed is None else view.unembed.numel()
    shared = view.unembed is not None and view.unembed.data_ptr() == view.embed.data_ptr()
    return TransformerCost(
        parameters=of_projections + of_ffn + view.embed.numel() + (0 if shared else words),
        projections=2 * of_projections * tokens,
        attention=sum(one.flops for one in between),
        ffn=2 * of_ffn * tokens,
        unembedding=2 * words * tokens,
        crossover=2 * (of_projections + of_ffn) / of_pairs,
        crossover_projections=2 * of_projections / of_pairs,
    )


def projections(heads: Heads) -> int:
    """Numbers in the matrices of a layer's queries, keys, values and outputs."""
    return sum(W.numel() for W in (heads.W_Q, heads.W_K, heads.W_V, heads.W_O))


def pairs(heads: Heads, tokens: int, size: int) -> AttentionCost:
    """What happens between tokens in one layer, under its own mask; a number of the model has `size` bytes."""
    (h, _, d), g = heads.W_Q.shape, len(heads.W_K)
    return attention_cost(heads.mechanism, (1, h, tokens, d), (1, g, tokens, d), heads.W_V.shape[-1], size)


def ffn_flops(view: View, layer: int) -> int:
    """FLOPs of an MLP on one token, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        view.mlps[layer](view.embed[:1].detach())
    return counter.get_total_flops()


def cached_bytes(view: View, tokens: int) -> int:
    """Bytes of all keys and values of so many tokens."""
    held = sum(len(one.W_K) * (one.W_K.shape[-1] + one.W_V.shape[-1]) for one in view.blocks)
    return held * view.dtype.itemsize * tokens


def weights_bytes(view: View, tokens: int) -> int:
    """Bytes of all attention weights, if they were held."""
    return sum(pairs(heads, tokens, view.dtype.itemsize).bytes_weights for heads in view.blocks)
