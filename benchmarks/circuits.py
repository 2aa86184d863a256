"""Error of scores rebuilt from the QK circuit under rotary positions and grouped heads: ours and TransformerLens'.

    python benchmarks/circuits.py          a Llama shape with random weights, seconds (--smallest: two layers, nothing is stored)
    make peers                             the same, and TransformerLens' `bridge.QK`

A score is x̂ᵢ M(i − j) x̂ⱼᵀ, where x̂ are the normalised tokens that the layer reads. The error is ‖rebuilt − model's‖ / ‖model's‖ over
all permitted scores. Under RoPE, M depends on the distance of two tokens, so one matrix for all distances cannot give the scores.
"""

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from peers import INSTALLED, transformer_bridge
from timing import make_parser, store_rows
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
def model_scores(net: Any, ids: Tensor) -> list[Tensor]:
    """The scores (head, n, n) of every layer as the model computes them, from its own rotated queries and keys."""
    from transformers.models.llama import modeling_llama as llama

    scores: list[Tensor] = []
    eager = llama.eager_attention_forward

    def record_scores(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **kwargs: Any
    ) -> Any:
        scores.append((query @ llama.repeat_kv(key, module.num_key_value_groups).mT * scaling)[0])
        return eager(module, query, key, value, mask, scaling, **kwargs)

    net.set_attn_implementation("eager")
    with patch.object(llama, "eager_attention_forward", record_scores):
        net(input_ids=ids[None], use_cache=False)
    net.set_attn_implementation("sdpa")
    return scores


@torch.no_grad()
def from_rheoscope(net: Any, ids: Tensor) -> list[Tensor]:
    """The scores of every layer from M(δ) of every head."""
    model = rs.load(net)
    trace = model.trace(ids)
    return [
        torch.stack([head_scores(model, trace, layer, head) for head in range(HEADS)])
        for layer in range(model.view.layers)
    ]


def head_scores(model: Any, trace: Any, layer: int, head: int) -> Tensor:
    heads, n = model.view.heads_of(layer), len(trace)
    x, M = heads.norm.normalise(trace.layer_input(layer)), model.view.head(layer, head).M
    scores = torch.zeros(n, n)
    for offset in range(n):
        form, rows = M(offset), torch.arange(offset, n)
        scores[rows, rows - offset] = ((x[rows] @ form.left) * (x[rows - offset] @ form.right.mT)).sum(-1)
    return scores


@torch.no_grad()
def from_transformer_lens(net: Any, ids: Tensor) -> list[Tensor]:
    """The scores of every layer from `bridge.QK`, one matrix per head for all distances."""
    bridge = transformer_bridge(net)
    _, cache = bridge.run_with_cache(ids[None])
    layer_inputs = [cache[f"blocks.{layer}.ln1.hook_out"][0] for layer in range(net.config.num_hidden_layers)]
    scale = (WIDTH // HEADS) ** -0.5
    return [
        torch.stack([x @ bridge.QK[layer, head].AB @ x.mT * scale for head in range(HEADS)])
        for layer, x in enumerate(layer_inputs)
    ]


METHODS: dict[str, Callable[[Any, Tensor], list[Tensor]]] = {"rheoscope, head.M(δ)": from_rheoscope} | (
    {"TransformerLens, bridge.QK": from_transformer_lens} if INSTALLED else {}
)


def relative_error(rebuilt: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """‖rebuilt − model's‖ / ‖model's‖ over all permitted pairs of all heads."""
    gaps = [(a - b).tril().norm() ** 2 for a, b in zip(rebuilt, expected, strict=True)]
    return float((sum(gaps) / sum(b.tril().norm() ** 2 for b in expected)).sqrt())


def main(argv: Sequence[str] | None = None) -> None:
    options = make_parser(__doc__).parse_args(argv)
    size = SMALLEST if options.smallest else FULL
    net, ids = (
        network(size["layers"]),
        torch.randint(2, 100, (size["tokens"],), generator=torch.Generator().manual_seed(0)),
    )
    expected, rows = model_scores(net, ids), []
    for name, rebuild in METHODS.items():
        rows.append({"name": name, **size, "relative error": relative_error(rebuild(net, ids), expected)})
        print(f"{name:32s} {size['tokens']:5d} tokens   relative error of scores {rows[-1]['relative error']:.1e}")
    store_rows("circuits", rows, options.smallest)


if __name__ == "__main__":
    main()
