"""What it costs to make text and to learn: generation and a training step, beside Hugging Face's GPT-2 of the same shape.

    python benchmarks/generate.py             the default model's shape on the CPU, about five minutes
    python benchmarks/generate.py --quick     fewer tokens, few rounds

Width 256, depth 6, 4 heads, vocabulary 4096: about 6 million random weights. "like for like" has GPT-2's own parts (learned
positions, layer norm, biases, GELU, hidden 1024); "default" is what `rheoscope train` takes. Greedy, with caches, the
same number of new tokens; a training step is forward, backward and AdamW on 8 x 256 tokens in float32. Ratios are time of
ours over time of the peer, interleaved, medians: below 1 is faster.
"""

import sys
from collections.abc import Callable

import torch
from timing import interleaved, keep, ratio
from torch.nn.functional import cross_entropy

from rheoscope.models.config import Config
from rheoscope.models.generate import generate
from rheoscope.models.transformer import Transformer

QUICK = "--quick" in sys.argv
PEER = "Hugging Face GPT-2"
DEFAULT = Config(vocabulary=4096, width=256, depth=6, heads=4, context=512)
LIKE_FOR_LIKE = DEFAULT.but(position="learned", norm="layer", ffn="gelu", bias=True, hidden=1024)


def peer() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=4096, n_positions=512, n_embd=256, n_layer=6, n_head=4, **off)).eval()


def ours() -> dict[str, Transformer]:
    torch.manual_seed(0)
    return {"like for like": Transformer(LIKE_FOR_LIKE).eval(), "default": Transformer(DEFAULT).eval()}


def against(what: str, methods: dict[str, Callable[[], object]], rounds: int) -> list[dict[str, object]]:
    seconds = interleaved(methods, rounds, warm=1)
    rows = []
    for name in methods:
        middle = sorted(seconds[name])[rounds // 2]
        speed, noise = ratio(seconds, name, PEER)
        print(f"{what:36s} {name:20s} {1000 * middle:8.0f} ms   {1 / speed:6.3f} +- {noise / speed**2:.3f}", flush=True)
        rows.append({"what": what, "name": name, "seconds": middle, "time ratio": 1 / speed, "noise": noise / speed**2})
    return [row for row in rows if row["name"] != PEER]


def made(texts: int, prompt: int, tokens: int, rounds: int) -> list[dict[str, object]]:
    """Greedy text. Theirs twice: `generate`, and a bare loop over its forward, which has less to do for a token."""
    theirs, ids = peer(), torch.randint(0, 4096, (texts, prompt))

    def whole() -> None:
        theirs.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)

    @torch.no_grad()
    def bare() -> None:
        past, last = None, ids
        for _ in range(tokens):
            out = theirs(input_ids=last, past_key_values=past, use_cache=True, logits_to_keep=1)
            past, last = out.past_key_values, out.logits[:, -1:].argmax(-1)

    methods = {
        name: lambda model=model: generate(model, ids, tokens, temperature=0.0) for name, model in ours().items()
    }
    what = f"{texts} x ({prompt} + {tokens}) tokens"
    rows = against(f"{what}, generate", methods | {PEER: whole}, rounds)
    return rows + against(f"{what}, bare loop", methods | {PEER: bare}, rounds)


def trained(rounds: int) -> list[dict[str, object]]:
    ids = torch.randint(0, 4096, (8, 257))
    theirs = peer().train()
    methods = {name: learner(model.train(), model, ids) for name, model in ours().items()}
    methods[PEER] = learner(theirs, lambda x: theirs(input_ids=x, use_cache=False).logits, ids)
    return against("a training step on 8 x 256 tokens", methods, rounds)


def learner(model: torch.nn.Module, logits: Callable[..., torch.Tensor], ids: torch.Tensor) -> Callable[[], None]:
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        cross_entropy(logits(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimiser.step()

    return step


if __name__ == "__main__":
    rounds = 3 if QUICK else 9
    tokens = 64 if QUICK else 256
    rows = made(1, 16, tokens, rounds) + made(8, 16, tokens, rounds)
    print("stored", keep("generate", rows + trained(rounds)))
