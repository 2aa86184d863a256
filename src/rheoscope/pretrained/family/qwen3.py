"""Qwen3: Llama with an RMSNorm on every query and key (QK-norm)."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from rheoscope.pretrained.family import llama
from rheoscope.pretrained.family.parts import rms_norm
from rheoscope.running.stream import Description
from rheoscope.space.head import Heads

KNOWN = llama.KNOWN


def describe(network: Any) -> Description:
    return llama.decoder(network, heads)


def heads(layer: Any, inner: Any, number: int) -> Heads:
    attn = layer.self_attn
    plain = llama.heads(layer, inner, number)
    return replace(normed(plain, attn), q_norm=rms_norm(attn.q_norm), k_norm=rms_norm(attn.k_norm))


def normed(heads: Heads, attn: Any) -> Heads:
    """The same heads, their queries and keys through the model's own norms."""
    plain = heads.project

    def project(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = plain(u)
        return attn.q_norm(q), attn.k_norm(k), v

    return replace(heads, project=project)
