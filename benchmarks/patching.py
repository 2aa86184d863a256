"""Cost of the full map of heads and tokens, and agreement of patched predictions with TransformerLens.

    python benchmarks/patching.py          the default model at 64 tokens, minutes (--smallest: 12 tokens, nothing is stored)
    make peers                             the same, and the patches and paths of TransformerLens on GPT-2's shape

The map patches the output of every head at every token: L · H · N runs of N tokens. It is compared with the batched forward passes
that it needs: the same number of texts in the same batches, through the whole network, and through the blocks that are not reused.
All tokens of the two texts differ, so that no part is skipped. Seconds are CPU seconds, because other programs share the machine.
With a GPU, the map is measured there instead, on the default model and on GPT-2's shape in bfloat16 (stored as `patching_gpu`).
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from peers import INSTALLED, transformer_bridge
from timing import interleaved, make_parser, ratio, store_rows
from torch import Tensor

import rheoscope as rs
from rheoscope.covers.circuit.edges import ROLES, Edge, Node, edge_name
from rheoscope.covers.circuit.path_effects import PathEffects
from rheoscope.covers.patch.analysis import pair_batch
from rheoscope.covers.patch.pairs import PairBatch
from rheoscope.covers.patch.patched_runs import TOKENS_PER_RUN, PatchedRuns, both_directions

FULL = {"tokens": 64, "rounds": 5, "layers": 12}
SMALLEST = {"tokens": 12, "rounds": 2, "layers": 2}


def random_pair(model: Any, n_tokens: int) -> PairBatch:
    """Two random texts without a common token."""
    ids = torch.randperm(len(model.view.embed) - 1, generator=torch.Generator().manual_seed(0))[: 2 * n_tokens] + 1
    return pair_batch(model, model.trace(ids[:n_tokens]), ids[n_tokens:], "", "logit_diff", -1, 0)


@torch.no_grad()
def head_token_map(runs: PatchedRuns) -> Tensor:
    """The metric with every head at every token."""
    view = runs.base.view
    return torch.stack([runs.head_groups(layer, range(view.heads)) for layer in range(view.layers)])


@torch.no_grad()
def plain_passes(runs: PatchedRuns, reuses_blocks: bool) -> None:
    """As many texts in the same batches without a patch."""
    model, view, n_tokens = runs.model, runs.base.view, runs.base.ids.shape[1]
    per_run = TOKENS_PER_RUN // n_tokens
    block_outputs = model.block_outputs(runs.base.ids)
    for layer in range(view.layers):
        for chunk in torch.arange(view.heads * n_tokens).split(per_run):
            reused = [output.expand(len(chunk), *output.shape[1:]) for output in block_outputs[:layer]]
            model.run_batch(runs.base.ids.expand(len(chunk), -1), block_outputs=reused if reuses_blocks else ())


def cost_rows(model: Any, model_name: str, n_tokens: int, rounds: int) -> list[dict[str, object]]:
    """The seconds of the map and of the forward passes, and their ratios."""
    runs, _ = both_directions(random_pair(model, n_tokens))
    methods: dict[str, Callable[[], object]] = {
        "map of heads and tokens": lambda: head_token_map(runs),
        "forward passes": lambda: plain_passes(runs, reuses_blocks=False),
        "forward passes with reused blocks": lambda: plain_passes(runs, reuses_blocks=True),
    }
    cuda = model.device.type == "cuda"
    seconds = interleaved(methods, rounds, warm=1, clock=gpu_clock if cuda else time.process_time)
    unit = "seconds" if cuda else "CPU seconds"
    rows: list[dict[str, object]] = []
    for name, times in seconds.items():
        share, noise = ratio(seconds, name, "map of heads and tokens")
        cost = {unit: statistics.median(times), "map / this": share, "noise": noise}
        rows.append({"model": model_name, "name": name, "tokens": n_tokens} | cost)
        print(
            f"{model_name:14s} {name:36s} {statistics.median(times):8.2f} s   map / this {share:5.2f} ± {noise:.2f}",
            flush=True,
        )
    return rows


def gpu_clock() -> float:
    """The time when all operations on the GPU have finished."""
    torch.cuda.synchronize()
    return time.perf_counter()


# Agreement with TransformerLens


def gpt2(layers: int) -> Any:
    """GPT-2's shape with random weights. Its initial weights are too small for a difference between texts."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    net = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_head=12, n_embd=768, vocab_size=1000)).eval()
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if weight.ndim == 2 and "wpe" not in name:
                weight.mul_(3)
    return net


@torch.no_grad()
def agreement_rows(size: dict[str, int]) -> list[dict[str, object]]:
    """The largest difference of patched metrics between both tools in float64, for some points, MLPs and heads."""
    net = gpt2(size["layers"])
    bridge = transformer_bridge(net).double()
    batch = random_pair(rs.load(net.double()), 12)
    runs, _ = both_directions(batch)
    _, donor = bridge.run_with_cache(batch.clean.ids)
    rows: list[dict[str, object]] = []
    for layer in range(0, size["layers"], max(1, size["layers"] // 4)):
        for part, ours, hook, patch in parts_of_layer(runs, donor, layer):
            logits = bridge.run_with_hooks(batch.corrupt.ids, fwd_hooks=[(hook, patch)])
            theirs = batch.measure(logits[:, -1].double().log_softmax(-1)[None])[0]
            error = float((ours - theirs).abs().max())
            rows.append({"name": f"L{layer} {part}", "metric": float(theirs), "largest difference": error})
            print(f"L{layer} {part:20s} metric {float(theirs):8.4f}   difference {error:.1e}")
    return rows + path_rows(bridge, batch)


def path_rows(bridge: Any, batch: PairBatch) -> list[dict[str, object]]:
    """The same for edges from a head of the first layer into a head of the last one, through each role."""
    n_layers = batch.clean.view.layers
    edges = [Edge(Node(0, 3), Node(n_layers - 1, 5), role) for role in ROLES]
    paths, _ = PathEffects.both_directions(batch)
    ours = paths.exact(edges, lambda: None)
    rows: list[dict[str, object]] = []
    for edge in edges:
        logits = bridge_path(bridge, batch, edge)
        theirs = batch.measure(logits[:, -1].double().log_softmax(-1)[None])[0]
        error = float((ours[edge] - theirs).abs().max())
        name = edge_name(edge, n_layers)
        rows.append({"name": name, "metric": float(theirs), "largest difference": error})
        print(f"{name:23s} metric {float(theirs):8.4f}   difference {error:.1e}")
    return rows


def bridge_path(bridge: Any, batch: PairBatch, edge: Edge) -> Tensor:
    """The logits of the corrupt text with one edge from the clean text, by hooks of TransformerLens.

    The first run freezes all heads and lets the sender write the donor's output. The second run reads its queries, keys or values.
    """
    (_, base), (_, donor) = (bridge.run_with_cache(texts.ids) for texts in (batch.corrupt, batch.clean))
    read_name = f"blocks.{edge.receiver.layer}.attn.hook_{edge.role}"
    read: list[Tensor] = []

    def set_head(x: Tensor, values: Tensor, head: int) -> Tensor:
        return x.index_copy(2, torch.tensor([head]), values.reshape(x.shape)[:, :, head : head + 1])

    def freeze(name: str, is_sender: bool) -> Callable[[Tensor, Any], Tensor]:
        def hook(x: Tensor, hook: Any) -> Tensor:
            frozen = base[name].reshape(x.shape)
            return set_head(frozen, donor[name], edge.sender.head) if is_sender else frozen

        return hook

    def record(x: Tensor, hook: Any) -> None:
        read.append(x.clone())

    def write(x: Tensor, hook: Any) -> Tensor:
        return set_head(x, read[0], edge.receiver.head)

    names = [f"blocks.{layer}.attn.hook_z" for layer in range(batch.clean.view.layers)]
    heads = [(name, freeze(name, layer == edge.sender.layer)) for layer, name in enumerate(names)]
    bridge.run_with_hooks(batch.corrupt.ids, fwd_hooks=[*heads, (read_name, record)])
    return bridge.run_with_hooks(batch.corrupt.ids, fwd_hooks=[(read_name, write)])


def parts_of_layer(
    runs: PatchedRuns, donor: Any, layer: int
) -> list[tuple[str, Tensor, str, Callable[[Tensor, Any], Tensor]]]:
    """Parts of a layer: our patched metric, and the hook of TransformerLens that makes the same patch."""
    head, token = 5, 7
    z, mlp, post = (f"blocks.{layer}.{name}" for name in ("attn.hook_z", "hook_mlp_out", "hook_resid_post"))

    def set_head(x: Tensor, hook: Any) -> Tensor:
        return x.index_copy(2, torch.tensor([head]), donor[z].reshape(x.shape)[:, :, head : head + 1])

    def set_token(name: str) -> Callable[[Tensor, Any], Tensor]:
        return lambda x, hook: x.index_copy(1, torch.tensor([token]), donor[name][:, token : token + 1])

    step = next(step for step in runs.base.steps if str(step) == f"L{layer}.resid_post")
    return [
        ("head", runs.heads(layer, "output")[head], z, set_head),
        ("MLP at a token", runs.mlp(layer)[token], mlp, set_token(mlp)),
        ("point", runs.stream(step)[token], post, set_token(post)),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    options = make_parser(__doc__).parse_args(argv)
    size = SMALLEST if options.smallest else FULL
    if torch.cuda.is_available():
        models = {
            "default": rs.load(device="cuda"),
            "GPT-2's shape": rs.load(gpt2(size["layers"]).to("cuda", torch.bfloat16)),
        }
        rows = [row for name, model in models.items() for row in cost_rows(model, name, size["tokens"], size["rounds"])]
        store_rows("patching_gpu", rows, options.smallest)
        return
    store_rows("patching", cost_rows(rs.load(), "default", size["tokens"], size["rounds"]), options.smallest)
    if INSTALLED:
        store_rows("patching_and_peers", agreement_rows(size), options.smallest)


if __name__ == "__main__":
    main()
