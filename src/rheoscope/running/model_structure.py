"""`rheoscope.describe`: how a model was interpreted, layer by layer, as a Dataset."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.running.layer_structure import LayerStructure, layer_structures
from rheoscope.running.matrix_locations import MATRICES
from rheoscope.running.operator_formulas import LINES, layer_formulas
from rheoscope.running.runner import RunnableModel

if TYPE_CHECKING:
    import xarray

LAYER_NUMBER = re.compile(r"(?<![\w.])((?:[A-Za-z_]\w*\.)+)\d+(?=\.)")
"""The names before the first number in a dotted name, and that number."""
DEFINITIONS = {
    "kind": Message("decoder, encoder, or cross for attention from the decoder to the encoder"),
    "layer_index": Message("the number of the layer in its encoder or decoder"),
    "group": Message("layers with the same number differ only in their weights"),
    "block": Message("whether attention and MLP run one after the other, in parallel, or each with a norm after it"),
    "heads": Message("number of query heads"),
    "kv_heads": Message("number of key and value heads"),
    "head_width": Message("width of queries and keys"),
    "value_width": Message("width of values"),
    "norm": Message("the norm before attention"),
    "norm_eps": Message("its eps"),
    "query_norm": Message("the norm of queries"),
    "key_norm": Message("the norm of keys"),
    "value_norm": Message("the norm of values"),
    "heads_norm": Message("the norm of the outputs of all heads, before W_O"),
    "output_norm": Message("the norm of what attention adds"),
    "scale": Message("the factor of M"),
    "cap": Message("scores s become cap · tanh(s / cap)"),
    "position": Message("how scores depend on positions"),
    "rotation_pairs": Message("the coordinates that rotate together: halves (c, c + half) or neighbours (2c, 2c + 1)"),
    "rotation_start": Message("the first rotated coordinate"),
    "rotation_stop": Message("the coordinate after the last rotated one"),
    "rotation_scale": Message("the factor of rotated queries and keys"),
    "causal": Message("whether a token reads only itself and tokens before it"),
    "window": Message("a token reads tokens at a smaller distance than this"),
    "normaliser": Message("the function from scores to weights"),
    "sink": Message("whether a row of weights has an extra key without a token"),
    "gate": Message("whether a gate multiplies the heads, or every coordinate of their values"),
    "bias": Message("whether the projection has a bias"),
    "location": Message(
        "the parameters that hold the matrix, or the layer whose adapters change it; · is a product of matrices"
    ),
    "formula": Message("the computation in plain symbols"),
    "weights_error": Message("largest difference of an attention weight from the model's, over all layers"),
    "closure_error": Message("largest relative difference of what attention adds from the model's"),
    "operators_error": Message("largest relative difference of queries, keys and values from the model's"),
    "tokens_certified": Message("number of tokens of a text of the certificate"),
    "positions_certified": Message("positions at which the certificate compared tokens with the model"),
    "windows_certified": Message("sizes of windows and chunks at whose edges it did"),
    "switches_certified": Message("positions around which it did because a rotary scaling may begin there"),
    "padding_certified": Message("whether it compared a text with padding"),
}


def describe(model: RunnableModel) -> "xarray.Dataset":
    """How a model was interpreted: the formulas of its attention, where each matrix lives, and the errors of the proof.

    **Formula** `formula` (layer, line) has the computation of every layer in plain symbols, from what it reads to M and F.

    **Returns** (layer): the sizes of the heads, the norms, the position encoding, the mask, the score, the gate and the order of the
    block. (layer, matrix): `location`, the parameters that hold W_Q, W_K, W_V, W_O and the gate, with their rows or columns, and
    `bias`. Scalars: the errors of the certificate. `positions_certified` has its positions. Layers of the same `group` differ only
    in their weights. The attribute `opaque_blocks` names the blocks without a softmax or without keys of their own, which have no
    M and no F. The attribute `not_certified` names what the certificate left out.

    In an encoder-decoder, `kind` and `layer_index` name the layers: those of the encoder, the decoder and cross-attention.

    **Siblings** `rheoscope describe MODEL` prints it. `rs.operators(model.view)` measures M and F.

    >>> import rheoscope as rs
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = rs.load(GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=9)))
    >>> print(rs.describe(model).location.sel(layer=1, matrix="W_K").item())
    transformer.h.1.attn.c_attn.weight[:, 8:16]
    """
    return structure_dataset(list(layer_structures(model)), dict(model.view.facts))


def structure_dataset(structures: Sequence[LayerStructure], facts: dict[str, Any]) -> "xarray.Dataset":
    """The structures of all layers as a Dataset with definitions and provenance."""
    import xarray as xr

    rows = [structure.fields() for structure in structures]
    formulas = [layer_formulas(structure) for structure in structures]
    values: dict[str, Any] = {name: ("layer", [row[name] for row in rows]) for name in rows[0]}
    values["layer_index"] = "layer", [structure.layer for structure in structures]
    values["group"] = "layer", layer_groups(structures)
    values["formula"] = ("layer", "line"), [[str(row.get(name, "")) for name in LINES] for row in formulas]
    locations = [[structure.locations.get(name, "") for name in MATRICES] for structure in structures]
    values["location"] = ("layer", "matrix"), locations
    values["bias"] = (
        ("layer", "matrix"),
        [[structure.biases().get(name, False) for name in MATRICES] for structure in structures],
    )
    certificate = facts.get("certificate")
    values |= certificate_values(certificate)
    untested = "" if certificate is None else "; ".join(map(str, certificate.coverage.untested))
    facts = facts | ({"not_certified": untested} if untested else {})
    variables = {
        name: xr.Variable(dims, np.asarray(value), {"definition": DEFINITIONS[name]})
        for name, (dims, value) in values.items()
    }
    coords = {"layer": range(len(structures)), "line": list(LINES), "matrix": list(MATRICES)}
    return xr.Dataset(variables, coords, {name: str(fact) for name, fact in facts.items()})


def certificate_values(certificate: Any) -> dict[str, tuple[tuple[str, ...], Any]]:
    """The errors and the coverage of a certificate, with their dimensions; nothing without a certificate."""
    if certificate is None:
        return {}
    coverage = certificate.coverage
    return {
        "weights_error": ((), certificate.weights_error),
        "closure_error": ((), certificate.closure_error),
        "operators_error": ((), certificate.operators_error),
        "tokens_certified": ((), certificate.n_tokens),
        "positions_certified": (("certified_position",), coverage.positions),
        "windows_certified": (("certified_window",), coverage.windows),
        "switches_certified": (("certified_switch",), coverage.switches),
        "padding_certified": ((), coverage.is_padded),
    }


def layer_groups(structures: Sequence[LayerStructure]) -> list[int]:
    """The same number for layers that differ only in their weights, counted in the order of the layers."""
    keys = [
        (
            tuple(repr(value) for value in structure.fields().values()),
            tuple(structure.biases().values()),
            tuple(layer_formulas(structure).values()),
            tuple(without_layer_number(name) for name in structure.locations.values()),
        )
        for structure in structures
    ]
    distinct = list(dict.fromkeys(keys))
    return [distinct.index(key) for key in keys]


def without_layer_number(location: str) -> str:
    """A location with * in place of the first number in each name, which is that of the layer.

    >>> without_layer_number("h.3.layer.0.q.weight[0:8], h.3.layer.0.norm.weight")
    'h.*.layer.0.q.weight[0:8], h.*.layer.0.norm.weight'
    """
    return LAYER_NUMBER.sub(r"\1*", location)
