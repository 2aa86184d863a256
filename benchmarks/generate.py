"""Time of generation and of a training step, compared with Hugging Face's GPT-2 of the same shape.

    python benchmarks/generate.py             the default model's shape on the CPU, about five minutes
    python benchmarks/generate.py --quick     fewer tokens and rounds (--smallest: seconds, nothing is stored)
    python benchmarks/generate.py --flow      only the cost and the memory of `rs.generate`, in results/generate_flow.json
    python benchmarks/generate.py --flow MODEL_DIRECTORY …      the same with further models

The models have width 256, depth 6, 4 heads and a vocabulary of 4096: about 6 million random weights. "like for like" has GPT-2's
parts (learned positions, layer norm, biases, GELU, hidden width 1024). "default" is the default of `rheoscope train`. Decoding is
greedy, with caches and the same number of new tokens. A training step is forward, backward and AdamW on 8 x 256 tokens in float32.
A ratio is our time divided by the peer's, as the median of interleaved rounds: below 1, we are faster.

The cost of the flow is the time of `rs.generate` divided by that of `stream`, or of a bare loop over a network of transformers. It
is in seconds of processor time, so that other programs on the machine do not count. Its memory is the peak of 2,000 new tokens
minus that of 1,000, per token, next to the size of the points and of both caches of keys and values.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from timing import interleaved, make_parser, peak_bytes, ratio, store_rows
from torch.nn.functional import cross_entropy

import rheoscope as rs
from rheoscope.models.config import Config
from rheoscope.models.generate import generate, stream
from rheoscope.models.transformer import Transformer

PEER = "Hugging Face GPT-2"
DEFAULT = Config(vocabulary=4096, width=256, depth=6, heads=4, context=512)
SMALLEST = Config(vocabulary=64, width=16, depth=1, heads=2, context=32)


def like_for_like(shape: Config) -> Config:
    return shape.with_changes(position="learned", norm="layer", ffn="gelu", bias=True, hidden=4 * shape.width)


def peer(shape: Config) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    peer_shape = {"n_embd": shape.width, "n_layer": shape.depth, "n_head": shape.heads}
    config = GPT2Config(vocab_size=shape.vocabulary, n_positions=shape.context, **peer_shape, **no_dropout)
    return GPT2LMHeadModel(config).eval()


def ours(shape: Config) -> dict[str, Transformer]:
    torch.manual_seed(0)
    return {"like for like": Transformer(like_for_like(shape)).eval(), "default": Transformer(shape).eval()}


def against(task: str, methods: dict[str, Callable[[], object]], rounds: int) -> list[dict[str, object]]:
    seconds = interleaved(methods, rounds, warm=1)
    rows = []
    for name in methods:
        middle = sorted(seconds[name])[rounds // 2]
        speed, noise = ratio(seconds, name, PEER)
        print(f"{task:36s} {name:20s} {1000 * middle:8.0f} ms   {1 / speed:6.3f} +- {noise / speed**2:.3f}", flush=True)
        rows.append({"what": task, "name": name, "seconds": middle, "time ratio": 1 / speed, "noise": noise / speed**2})
    return [row for row in rows if row["name"] != PEER]


def generation(shape: Config, texts: int, prompt: int, tokens: int, rounds: int) -> list[dict[str, object]]:
    """Greedy decoding, compared with Hugging Face's `generate` and with a bare loop over its forward pass, which is cheaper."""
    peer_model, ids = peer(shape), torch.randint(0, shape.vocabulary, (texts, prompt))

    def peer_generate() -> None:
        peer_model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)

    @torch.no_grad()
    def peer_loop() -> None:
        cache, last = None, ids
        for _ in range(tokens):
            out = peer_model(input_ids=last, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, last = out.past_key_values, out.logits[:, -1:].argmax(-1)

    methods = {
        name: lambda model=model: generate(model, ids, tokens, temperature=0.0) for name, model in ours(shape).items()
    }
    task = f"{texts} x ({prompt} + {tokens}) tokens"
    rows = against(f"{task}, generate", methods | {PEER: peer_generate}, rounds)
    return rows + against(f"{task}, bare loop", methods | {PEER: peer_loop}, rounds)


def training_step(shape: Config, rounds: int) -> list[dict[str, object]]:
    ids = torch.randint(0, shape.vocabulary, (8, shape.context // 2 + 1))
    peer_model = peer(shape).train()
    methods = {name: make_step(model.train(), model, ids) for name, model in ours(shape).items()}
    methods[PEER] = make_step(peer_model, lambda x: peer_model(input_ids=x, use_cache=False).logits, ids)
    return against(f"a training step on 8 x {shape.context // 2} tokens", methods, rounds)


def make_step(model: torch.nn.Module, logits: Callable[..., torch.Tensor], ids: torch.Tensor) -> Callable[[], None]:
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        cross_entropy(logits(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimiser.step()

    return step


def flow_cost(name: str, model: Any, tokens: int, rounds: int) -> dict[str, object]:
    """The processor time of a generated token with and without its flow. Greedy, from a prompt of 16 tokens."""
    prompt = torch.arange(5, 21)

    def bare() -> list[int]:
        if isinstance(model.network, Transformer):  # as `rheoscope generate` runs without --flow
            return [int(token) for token in stream(model.network, prompt[None], tokens, temperature=0.0)]
        network, ids = model.cached_network(len(prompt) + tokens), prompt[None]
        out: list[int] = []
        for _ in range(tokens):
            out.append(int(network.read(ids).argmax()))
            ids = torch.tensor([[out[-1]]])
        return out

    def with_flow() -> None:
        for _ in rs.generate(model, prompt, tokens):
            pass

    tokens = len(list(rs.generate(model, prompt, tokens)))  # a model may end its text
    seconds = interleaved({"bare": bare, "flow": with_flow}, rounds, warm=1, clock=time.process_time)
    speed, noise = ratio(seconds, "flow", "bare")
    middle = {method: 1000 * statistics.median(times) / tokens for method, times in seconds.items()}
    row = {
        "what": "flow",
        "name": name,
        "tokens": tokens,
        "ms per token": middle["flow"],
        "bare ms per token": middle["bare"],
    }
    print(
        f"{name:28s} {tokens:5d} tokens   {middle['bare']:7.2f} → {middle['flow']:7.2f} ms per token   ×{1 / speed:.3f}",
        flush=True,
    )
    return row | {"time ratio": 1 / speed, "noise": noise / speed**2}


MEMORY_SCRIPT = """
import collections, torch, rheoscope as rs
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer
model = rs.load(Transformer(Config(vocabulary={vocabulary}, width={width}, depth={depth}, heads={heads}, context=4096)))
collections.deque(rs.generate(model, torch.arange(5, 21), 64), maxlen=0)
generation = rs.generate(model, torch.arange(5, 21), {tokens})
# measured
collections.deque(generation, maxlen=0)
"""


def flow_memory(shape: Config, tokens: int, fresh: bool) -> dict[str, object]:
    """The bytes by which the peak grows per token, between `tokens` / 2 and `tokens` new tokens."""
    sizes = vars(shape) | {"kv_heads": shape.kv_heads}
    names = ("vocabulary", "width", "depth", "heads")
    peaks = [
        peak_bytes(MEMORY_SCRIPT.format(**{name: sizes[name] for name in names}, tokens=n), fresh)
        for n in (tokens // 2, tokens)
    ]
    points, keys_values = (
        4 * (2 * shape.depth + 1) * shape.width,
        4 * 2 * shape.depth * shape.kv_heads * 2 * shape.head_width,
    )
    row = {"what": "flow memory", "name": "default shape", "tokens": tokens, "peak bytes": peaks[1]}
    growth = (peaks[1] - peaks[0]) / (tokens - tokens // 2)
    print(
        f"{tokens} tokens: {growth:.0f} bytes per token; points {points}, keys and values in two caches {keys_values}",
        flush=True,
    )
    return row | {"bytes per token": growth, "points": points, "keys and values": keys_values}


def flow(models: Sequence[str], rounds: int, is_smallest: bool) -> None:
    tokens = 4 if is_smallest else 256
    rows = [flow_cost("default model", rs.load(), tokens, rounds)]
    rows += [flow_cost(Path(model).name, rs.load(model), 96, rounds) for model in models]
    rows.append(flow_memory(SMALLEST if is_smallest else DEFAULT, 8 if is_smallest else 2000, fresh=not is_smallest))
    store_rows("generate_flow", rows, is_smallest)


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--flow", nargs="*", metavar="MODEL_DIRECTORY", help="only the flow of generated tokens")
    options = parser.parse_args(argv)
    if options.flow is not None:
        flow(options.flow, 2 if options.smallest else 9, options.smallest)
        return
    shape, tokens, rounds = (DEFAULT, 64, 3) if options.quick else (DEFAULT, 256, 9)
    if options.smallest:
        shape, tokens, rounds = SMALLEST, 4, 2
    rows = generation(shape, 1, 16, tokens, rounds) + generation(shape, 8, 16, tokens, rounds)
    store_rows("generate", rows + training_step(shape, rounds), options.smallest)
    if options.smallest:
        flow([], rounds, is_smallest=True)


if __name__ == "__main__":
    main()
