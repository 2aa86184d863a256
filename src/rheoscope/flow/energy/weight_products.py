"""Products of the weights of a layer's heads, computed once for every View."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.space.head import Heads
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.view import View


@dataclass(frozen=True, eq=False)
class WeightProducts:
    """Products of Q (the query weights after the norm), K (the key weights) and O (the output map) of every head.

    For heads of width k in E of width d they take 7k/12d of the memory of a standard layer.
    """

    output_to_query: Float[Tensor, "h e k"]
    output_to_key: Float[Tensor, "h e k"]
    output_gram: Float[Tensor, "h e e"]
    centred_output_gram: Float[Tensor, "h e e"]
    query_gram: Float[Tensor, "h k k"]
    query_and_key_gram: Float[Tensor, "h m m"]

    @property
    def output_to_query_and_key(self) -> Float[Tensor, "h e m"]:
        return torch.cat([self.output_to_query, self.output_to_key], -1)


WeightVersions = tuple[int, ...]
WEIGHT_PRODUCTS: WeakKeyDictionary[View, dict[int, tuple[WeightVersions, WeightProducts]]] = WeakKeyDictionary()


def weight_products(view: View, layer: int, output_map: Float[Tensor, "h e d"]) -> WeightProducts:
    """The products of a layer whose output map, with the gain of a norm after attention, is `output_map`.

    They are computed again if the weights have changed in place.
    """
    heads, by_layer = view.layer_heads[layer], WEIGHT_PRODUCTS.setdefault(view, {})
    versions = weight_versions(heads)
    if layer not in by_layer or by_layer[layer][0] != versions:
        by_layer[layer] = versions, compute_weight_products(heads, output_map)
    return by_layer[layer][1]


def weight_versions(heads: Heads) -> WeightVersions:
    """How often each weight has been changed in place."""
    output_gain = None if heads.output_norm is None else heads.output_norm.gain
    weights = (heads.W_Q, heads.W_K, heads.W_O, heads.norm.gain, output_gain)
    return tuple(0 if x is None or x.is_inference() else x._version for x in weights)


def compute_weight_products(heads: Heads, output_map: Float[Tensor, "h e d"]) -> WeightProducts:
    """The products with key weights serve all heads of a group."""
    queries, keys = (at_least_float32(heads.norm.fold(W.detach())) for W in (heads.W_Q, heads.W_K))

    def times_keys(maps: Float[Tensor, "h r d"]) -> Float[Tensor, "h r k"]:
        products = maps.unflatten(0, (len(keys), -1)).flatten(1, 2) @ keys
        return products.unflatten(1, (-1, maps.shape[1])).flatten(0, 1)

    query_gram, query_key = queries.mT @ queries, times_keys(queries.mT)
    key_gram = (keys.mT @ keys).repeat_interleave(heads.n_heads // len(keys), 0)
    output_gram = output_map @ output_map.mT
    return WeightProducts(
        output_to_query=output_map @ queries,
        output_to_key=times_keys(output_map),
        output_gram=output_gram,
        centred_output_gram=heads.norm.centre(output_map) @ output_map.mT if heads.norm.subtracts_mean else output_gram,
        query_gram=query_gram,
        query_and_key_gram=torch.cat(
            [torch.cat([query_gram, query_key], -1), torch.cat([query_key.mT, key_gram], -1)], -2
        ),
    )
