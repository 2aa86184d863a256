"""What it costs to make text and to learn: generation and a training step, beside Hugging Face's GPT-2 of the same shape.

    python benchmarks/generate.py             the default model's shape on the CPU, about five minutes
    python benchmarks/generate.py --quick     fewer tokens, few rounds (--smallest: seconds, nothing stored)

Width 256, depth 6, 4 heads, vocabulary 4096: about 6 million random weights. "like for like" has GPT-2's own parts (learned
positions, layer norm, biases, GELU, hidden 1024); "default" is what `rheoscope train` takes. Greedy, with caches, the
same number of new tokens; a training step is forward, backward and AdamW on 8 x 256 tokens in float32. Ratios are time of
ours over time of the peer, interleaved, medians: below 1 is faster.
"""

from collections.abc import Callable, Sequence

import torch
from timing import arguments, interleaved, keep, ratio
from torch.nn.functional import cross_entropy

from rheoscope.models.config import Config
from rheoscope.models.generate import generate
from rheoscope.models.transformer import Transformer

PEER = "Hugging Face GPT-2"
DEFAULT = Config(vocabulary=4096, width=256, depth=6, heads=4, context=512)
SMALLEST = Config(vocabulary=64, width=16, depth=1, heads=2, context=32)


def like_for_like(shape: Config) -> Config:
    return shape.with_changes(position="learned", norm="layer", ffn="gelu", bias=True, hidden=4 * shape.width)


def peer(shape: Config) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    same = {"n_embd": shape.width, "n_layer": shape.depth, "n_head": shape.heads}
    config = GPT2Config(vocab_size=shape.vocabulary, n_positions=shape.context, **same, **off)
    return GPT2LMHeadModel(config).eval()


def ours(shape: Config) -> dict[str, Transformer]:
    torch.manual_seed(0)
    return {"like for like": Transformer(like_for_like(shape)).eval(), "default": Transformer(shape).eval()}


def against(what: str, methods: dict[str, Callable[[], object]], rounds: int) -> list[dict[str, object]]:
    seconds = interleaved(methods, rounds, warm=1)
    rows = []
    for name in methods:
        middle = sorted(seconds[name])[rounds // 2]
        speed, noise = ratio(seconds, name, PEER)
        print(f"{what:36s} {name:20s} {1000 * middle:8.0f} ms   {1 / speed:6.3f} +- {noise / speed**2:.3f}", flush=True)
        rows.append({"what": what, "name": name, "seconds": middle, "time ratio": 1 / speed, "noise": noise / speed**2})
    return [row for row in rows if row["name"] != PEER]


def made(shape: Config, texts: int, prompt: int, tokens: int, rounds: int) -> list[dict[str, object]]:
    """Greedy text. Theirs twice: `generate`, and a bare loop over its forward, which has less to do for a token."""
    theirs, ids = peer(shape), torch.randint(0, shape.vocabulary, (texts, prompt))

    def whole() -> None:
        theirs.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)

    @torch.no_grad()
    def bare() -> None:
        past, last = None, ids
        for _ in range(tokens):
            out = theirs(input_ids=last, past_key_values=past, use_cache=True, logits_to_keep=1)
            past, last = out.past_key_values, out.logits[:, -1:].argmax(-1)

    methods = {
        name: lambda model=model: generate(model, ids, tokens, temperature=0.0) for name, model in ours(shape).items()
    }
    what = f"{texts} x ({prompt} + {tokens}) tokens"
    rows = against(f"{what}, generate", methods | {PEER: whole}, rounds)
    return rows + against(f"{what}, bare loop", methods | {PEER: bare}, rounds)


def trained(shape: Config, rounds: int) -> list[dict[str, object]]:
    ids = torch.randint(0, shape.vocabulary, (8, shape.context // 2 + 1))
    theirs = peer(shape).train()
    methods = {name: learner(model.train(), model, ids) for name, model in ours(shape).items()}
    methods[PEER] = learner(theirs, lambda x: theirs(input_ids=x, use_cache=False).logits, ids)
    return against(f"a training step on 8 x {shape.context // 2} tokens", methods, rounds)


def learner(model: torch.nn.Module, logits: Callable[..., torch.Tensor], ids: torch.Tensor) -> Callable[[], None]:
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        cross_entropy(logits(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimiser.step()

    return step


def main(words: Sequence[str] | None = None) -> None:
    asked = arguments(__doc__).parse_args(words)
    shape, tokens, rounds = (DEFAULT, 64, 3) if asked.quick else (DEFAULT, 256, 9)
    if asked.smallest:
        shape, tokens, rounds = SMALLEST, 4, 2
    rows = made(shape, 1, 16, tokens, rounds) + made(shape, 8, 16, tokens, rounds)
    keep("generate", rows + trained(shape, rounds), asked.smallest)


if __name__ == "__main__":
    main()
