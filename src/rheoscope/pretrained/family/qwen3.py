"""Qwen3: Llama with an RMSNorm on every query and key (QK-norm)."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from rheoscope.pretrained.family import llama
from rheoscope.pretrained.family.parts import rms_norm
from rheoscope.running.stream import ModelDescription
from rheoscope.space.head import Heads

MODEL_TYPES = ("qwen3",)
KNOWN_FIELDS = llama.KNOWN_FIELDS


def describe(network: Any) -> ModelDescription:
    return llama.describe_decoder(network, heads)


def heads(layer: Any, inner: Any, layer_index: int) -> Heads:
    attn = layer.self_attn
    plain_heads = llama.heads(layer, inner, layer_index)
    return replace(with_qk_norm(plain_heads, attn), q_norm=rms_norm(attn.q_norm), k_norm=rms_norm(attn.k_norm))


def with_qk_norm(heads: Heads, attn: Any) -> Heads:
    """The same heads, with the model's own norms on queries and keys."""
    project_plain = heads.project

    def project(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = project_plain(u)
        return attn.q_norm(q), attn.k_norm(k), v

    return replace(heads, project=project)
