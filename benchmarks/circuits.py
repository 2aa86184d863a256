"""Are scores rebuilt from the QK circuit those of the model? With rotary positions and grouped heads, ours and TransformerLens'.

    python benchmarks/circuits.py          a Llama shape with random weights, seconds (--smallest: two layers, nothing stored)
    make peers                             the same, with TransformerLens' `bridge.QK` beside it

A score is x̂ᵢ M(i − j) x̂ⱼᵀ, from what the layer reads of both tokens. The error is that of all permitted scores together, relative to
the model's own: ‖rebuilt − own‖ / ‖own‖. Under RoPE M depends on how far apart two tokens are; one matrix for all distances cannot
give the scores.
"""

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from peers import INSTALLED, bridged
from timing import arguments, keep
from torch import Tensor

import rheoscope as rs

FULL = {"layers": 6, "tokens": 128}
SMALLEST = {"layers": 2, "tokens": 12}
HEADS, KEYS, WIDTH = 8, 2, 256


def network(layers: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEYS,
    }
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=100, num_hidden_layers=layers, **shape, **special)).eval()


@torch.no_grad()
def own(net: Any, ids: Tensor) -> list[Tensor]:
    """The scores as the model computes them: queries and keys that it has rotated itself, a tensor (head, n, n) a layer."""
    from transformers.models.llama import modeling_llama as llama

    seen: list[Tensor] = []
    eager = llama.eager_attention_forward

    def watching(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **more: Any) -> Any:
        seen.append((query @ llama.repeat_kv(key, module.num_key_value_groups).mT * scaling)[0])
        return eager(module, query, key, value, mask, scaling, **more)

    net.set_attn_implementation("eager")
    with patch.object(llama, "eager_attention_forward", watching):
        net(input_ids=ids[None], use_cache=False)
    net.set_attn_implementation("sdpa")
    return seen


@torch.no_grad()
def from_rheoscope(net: Any, ids: Tensor) -> list[Tensor]:
    """Of every head M(δ), one offset after another."""
    model = rs.load(net)
    trace = model.trace(ids)
    return [
        torch.stack([by_offset(model, trace, layer, head) for head in range(HEADS)])
        for layer in range(model.view.layers)
    ]


def by_offset(model: Any, trace: Any, layer: int, head: int) -> Tensor:
    heads, n = model.view.heads_of(layer), len(trace)
    x, M = heads.norm.normalise(trace.layer_input(layer)), model.view.head(layer, head).M
    scores = torch.zeros(n, n)
    for offset in range(n):
        form, rows = M(offset), torch.arange(offset, n)
        scores[rows, rows - offset] = ((x[rows] @ form.left) * (x[rows - offset] @ form.right.mT)).sum(-1)
    return scores


@torch.no_grad()
def from_transformer_lens(net: Any, ids: Tensor) -> list[Tensor]:
    """Of every head `bridge.QK`, one matrix for all places."""
    bridge = bridged(net)
    _, cache = bridge.run_with_cache(ids[None])
    read = [cache[f"blocks.{layer}.ln1.hook_out"][0] for layer in range(net.config.num_hidden_layers)]
    scale = (WIDTH // HEADS) ** -0.5
    return [
        torch.stack([x @ bridge.QK[layer, head].AB @ x.mT * scale for head in range(HEADS)])
        for layer, x in enumerate(read)
    ]


REBUILT: dict[str, Callable[[Any, Tensor], list[Tensor]]] = {"rheoscope, head.M(δ)": from_rheoscope} | (
    {"TransformerLens, bridge.QK": from_transformer_lens} if INSTALLED else {}
)


def off(rebuilt: Sequence[Tensor], real: Sequence[Tensor]) -> float:
    """‖rebuilt − own‖ / ‖own‖ over all permitted pairs of all heads."""
    gaps = [(a - b).tril().norm() ** 2 for a, b in zip(rebuilt, real, strict=True)]
    return float((sum(gaps) / sum(b.tril().norm() ** 2 for b in real)).sqrt())


def main(words: Sequence[str] | None = None) -> None:
    asked = arguments(__doc__).parse_args(words)
    size = SMALLEST if asked.smallest else FULL
    net, ids = (
        network(size["layers"]),
        torch.randint(2, 100, (size["tokens"],), generator=torch.Generator().manual_seed(0)),
    )
    real, rows = own(net, ids), []
    for name, rebuild in REBUILT.items():
        rows.append({"name": name, **size, "relative error": off(rebuild(net, ids), real)})
        print(f"{name:32s} {size['tokens']:5d} tokens   scores off by {rows[-1]['relative error']:.1e}")
    keep("circuits", rows, asked.smallest)


if __name__ == "__main__":
    main()
