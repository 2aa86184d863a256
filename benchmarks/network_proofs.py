"""Compare a View with the network's own run: eager attention in float64, read by hooks on the network's modules.

None of Rheoscope's taps and none of its certificate is used. The weights and scores are those of the network's softmax, and the
points are what its blocks receive and return.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from rheoscope.attention.score import SoftCap
from rheoscope.pretrained.feature_model import FeatureModel
from rheoscope.pretrained.network_inputs import feature_arguments, is_pair, random_features, reads_tokens
from rheoscope.pretrained.packed_patches import is_packed
from rheoscope.running.certificate import closure_error
from rheoscope.running.encoder_decoder import EncoderDecoder
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads
from rheoscope.space.model_parts import PlaceRotary

N_TOKENS, N_SOURCE, N_PADDING, SHIFT = 60, 41, 11, 29
"""Tokens of a text and of a source, padding of the shorter text of a batch, and the first position of a shifted text."""
N_SHORT_FORM = 24
"""Tokens of the text on which M is proved if the rotation changes with the length of the text."""
OFFSETS = (0, 1, 2, 7, 23)
"""Distances at which x̂ M x̂ᵀ is compared with scores."""
MASKED_BELOW = -1e4
"""Scores at or below this are masked."""


@dataclass(eq=False)
class Call:
    """One call of a module: the first cloud that it receives, the first that it returns, and its first and last step."""

    module: nn.Module
    received: list[Tensor]
    first: int
    returned: list[Tensor] = field(default_factory=list)
    last: int = 0


@dataclass(frozen=True, eq=False)
class BlockRun:
    """What one block with attention computed: its points, its output, its softmax, and the tensors of its modules.

    `first_result` is what its first module returns: the points of a block that begins with a norm (MiniMax). A block of several
    streams returns no cloud.
    """

    points: Float[Tensor, "b n d"]
    first_result: Float[Tensor, "b n d"] | None
    output: Float[Tensor, "b n d"] | None
    scores: Float[Tensor, "b h n s"]
    weights: Float[Tensor, "b h n s"]
    tensors: list[Float[Tensor, "b n d"]]


class NetworkRecorder(TorchDispatchMode):
    """Records every call of a module and every softmax over the tokens of a text, or over a segment of a packed sequence."""

    def __init__(self, network: nn.Module, n_tokens: int) -> None:
        super().__init__()
        self.most_keys = n_tokens + 1 if is_pair(network) else None  # cross-attention has keys of another cloud
        self.network, self.n_tokens, self.n_steps, self.is_packed = network, n_tokens, 0, is_packed(network)
        self.calls, self.open_calls = list[Call](), list[Call]()
        self.softmaxes: list[tuple[int, list[Call], Tensor, Tensor]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        self.n_steps += 1
        is_softmax = function is torch.ops.aten._softmax.default and out.ndim >= 3
        if is_softmax and self.is_packed and out.shape[-2] == out.shape[-1]:
            self._append_segment(args[0], out)
        elif is_softmax and self._is_self_attention(out) and not self._repeats_last(out):
            self.softmaxes.append((self.n_steps, list(self.open_calls), args[0], out))
        return out

    def _is_self_attention(self, weights: Tensor) -> bool:
        n, n_keys = weights.shape[-2:]
        return n == self.n_tokens and n <= n_keys <= (self.most_keys or n_keys)

    def _append_segment(self, scores: Tensor, weights: Tensor) -> None:
        """Join the softmaxes of one call: tokens of different segments do not see each other."""
        if self.softmaxes and self.softmaxes[-1][1][-1] is self.open_calls[-1]:
            step, calls, *earlier = self.softmaxes.pop()
            scores, weights = (_join(*pair) for pair in zip(earlier, (scores, weights), strict=True))
            m = earlier[0].shape[-1]
            scores[..., :m, m:] = scores[..., m:, :m] = -torch.inf
        else:
            step, calls = self.n_steps, list(self.open_calls)
        self.softmaxes.append((step, calls, scores, weights))

    def _repeats_last(self, weights: Tensor) -> bool:
        """Whether the last softmax ran in the same call of a module and had the same weights (DiffLlama)."""
        if not self.softmaxes or self.softmaxes[-1][1][-1] is not self.open_calls[-1]:
            return False
        return torch.equal(self.softmaxes[-1][3], weights)

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.n_steps += 1
        self.open_calls.append(Call(module, self._clouds((args, kwargs)), self.n_steps))

    def after(self, module: nn.Module, args: Any, out: Any) -> None:
        call = self.open_calls.pop()
        self.n_steps += 1
        call.returned, call.last = self._clouds(out), self.n_steps
        self.calls.append(call)

    def _clouds(self, values: Any) -> list[Tensor]:
        tensors = [x for x in tree_flatten(values)[0] if isinstance(x, Tensor) and x.is_floating_point()]
        tensors = [x[None] if self.is_packed and x.ndim == 2 else x for x in tensors]
        return [x.detach().clone() for x in tensors if x.ndim == 3 and x.shape[1] == self.n_tokens]

    def block_runs(self, other_blocks: set[nn.Module]) -> list[BlockRun]:
        """The largest member of a list of modules around every softmax that contains no other softmax, without `other_blocks`."""
        members = {x for parent in self.network.modules() if isinstance(parent, nn.ModuleList) for x in parent}
        steps = [step for step, *_ in self.softmaxes]
        runs = []
        for _, open_calls, scores, weights in self.softmaxes:
            if members.isdisjoint(x.module for x in open_calls):  # over a vocabulary of patches
                continue
            call = next(
                x for x in open_calls if x.module in members and sum(x.first <= step <= x.last for step in steps) == 1
            )
            if call.module in other_blocks:
                continue
            inside = [x for x in self.calls if call.first <= x.first and x.last <= call.last]
            tensors = [x for other in inside for x in (*other.received, *other.returned)]
            first = min((x for x in inside if x.first > call.first), key=lambda x: x.first)
            n, heads = self.n_tokens, (len(call.received[0]), -1)
            runs.append(
                BlockRun(
                    call.received[0],
                    next(iter(first.returned), None),
                    next(iter(call.returned), None),
                    scores.reshape(*heads, n, scores.shape[-1])[..., :n],
                    weights.reshape(*heads, n, weights.shape[-1])[..., :n],
                    tensors,
                )
            )
        return runs


def _join(first: Tensor, second: Tensor) -> Tensor:
    """Two squares (1, h, m, m) on the diagonal of a larger one."""
    heads = zip(first[0], second[0], strict=True)
    return torch.stack([torch.block_diag(*squares) for squares in heads])[None]


@torch.no_grad()
def run_network(model: Any, n_tokens: int, inputs: dict[str, Any]) -> list[BlockRun]:
    """The blocks of one forward pass, in the order of their softmaxes, without those that have no M and F."""
    network = model.network
    names = filter(None, model.view.facts.get("opaque_blocks", "").split(", "))
    other_blocks = {network.get_submodule(name) for name in names}
    recorder = NetworkRecorder(network, n_tokens)
    handles = [x.register_forward_pre_hook(recorder.before, with_kwargs=True) for x in network.modules()]
    handles += [x.register_forward_hook(recorder.after) for x in network.modules()]
    try:
        with recorder:
            network(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    return recorder.block_runs(other_blocks)


@dataclass
class Proof:
    """The largest error of every comparison, by its name, and what could not be compared."""

    errors: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, error: float) -> None:
        self.errors[name] = max(self.errors.get(name, 0.0), error) if error == error else error


@torch.no_grad()
def prove(model: Any) -> Proof:
    """Compare a loaded model with its network on a text, a padded batch and a shifted text, or on random pixels or sounds."""
    if isinstance(model, FeatureModel):
        return _prove_features(model)
    if isinstance(model, EncoderDecoder):
        return _prove_pair(model)
    proof, vocabulary = Proof(), len(model.view.embed)
    n = min(N_TOKENS, model.view.context_length or N_TOKENS)
    ids = torch.randint(vocabulary // 4, vocabulary - 1, (2, n), generator=torch.Generator().manual_seed(2))
    read_points = _points_reader(model, ids[:1])
    _prove_text(model, ids[:1], proof, read_points)
    for side in ("right", "left"):
        _prove_padded(model, ids, side, proof, read_points)
    if n + SHIFT <= (model.view.context_length or n + SHIFT):
        _prove_shifted(model, ids[:1], proof, read_points)
    else:
        proof.skipped["shift"] = f"the model reads at most {model.view.context_length} tokens"
    return proof


PointsReader = Callable[[int, BlockRun], Tensor]
"""The points (b, n, d) of a layer in the run of its block."""


def _points_reader(model: Any, ids: Int[Tensor, "1 n"]) -> PointsReader:
    """Where the points of a View are in the runs of its blocks: what they receive, what their first modules return (MiniMax), or a
    tensor of one of their modules, the same in every run (blocks of several streams)."""
    runs, trace = run_network(model, ids.shape[1], {"input_ids": ids, "use_cache": False}), model.trace(ids[0])
    x = trace.layer_input(0)
    if "streams" in model.view.facts:
        places = [_nearest(trace.layer_input(layer), run.tensors) for layer, run in enumerate(runs)]
        return lambda layer, run: run.tensors[places[layer]]
    first, received = runs[0].first_result, runs[0].points
    has_both = first is not None and first.shape == received.shape
    if has_both and _relative(x, received[0]) > 1e-6 > _relative(x, first[0]):  # type: ignore[index]
        return lambda layer, run: run.first_result  # type: ignore[return-value]
    return lambda layer, run: run.points


def _nearest(x: Float[Tensor, "n d"], tensors: list[Tensor]) -> int:
    gaps = [_relative(x, y[0]) if y[0].shape == x.shape else float("inf") for y in tensors]
    return gaps.index(min(gaps))


def _run_blocks(model: Any, ids: Int[Tensor, "b n"], read_points: PointsReader, **inputs: Tensor) -> list[BlockRun]:
    """The blocks of one forward pass with their points."""
    runs = run_network(model, ids.shape[1], {"input_ids": ids, "use_cache": False, **inputs})
    return [replace(run, points=read_points(layer, run)) for layer, run in enumerate(runs)]


def _prove_text(model: Any, ids: Int[Tensor, "1 n"], proof: Proof, read_points: PointsReader) -> None:
    runs = _run_blocks(model, ids, read_points)
    _prove_layers(model, model.trace(ids[0]), runs, proof)
    short_runs = _run_blocks(model, ids[:, :N_SHORT_FORM], read_points)
    is_short_form = _depends_on_length(runs, short_runs)
    if is_short_form:
        proof.skipped["M of long texts"] = "the rotation changes with the length of the text"
    for layer, run in enumerate(short_runs if is_short_form else runs):
        _prove_form(model.view.layer_heads[layer], run.points[0], run.scores[0], proof)


def _prove_layers(model: Any, trace: Any, runs: list[BlockRun], proof: Proof) -> None:
    """Points, weights, updates, closure, F and the feed-forward part of every layer."""
    proof.add("layers", abs(len(runs) - model.view.layers))
    for layer, run in enumerate(runs):
        heads, x = model.view.layer_heads[layer], run.points[0]
        proof.add("points", _relative(trace.layer_input(layer), x))
        proof.add("closure", closure_error(trace, layer))
        _prove_block(heads, x, run, 0, slice(None), "", proof)
        displacements = heads.displacements(x).sum(0) + heads.bias(x)
        proof.add("displacements", _relative(displacements, heads.attention_update(x)))
        _prove_feed_forward(model.view, layer, run, proof)
        _prove_map(heads, x, run.weights[0], proof)


def _prove_features(model: FeatureModel) -> Proof:
    """The same for an image or a sound of random numbers."""
    proof, features = Proof(), random_features(model.network, seed=2)
    runs = run_network(model, model.n_tokens(features[0]), feature_arguments(model.network, features))
    _prove_layers(model, model.trace(features[0]), runs, proof)
    for layer, run in enumerate(runs):
        heads = model.view.layer_heads[layer]
        if isinstance(heads.mechanism.position, PlaceRotary):
            proof.skipped["M"] = "patches rotate by their rows and columns"
        else:
            _prove_form(heads, run.points[0], run.scores[0], proof)
    proof.skipped |= dict.fromkeys(("padding", "shift"), "images and sounds have neither")
    return proof


def _prove_pair(model: EncoderDecoder) -> Proof:
    """The same for both clouds of an encoder-decoder, and its cross-attention."""
    proof, generator = Proof(), torch.Generator().manual_seed(2)
    vocabulary, is_text = len(model.view.embed), reads_tokens(model.network)
    limits = [min(n, view.context_length or n) for n, view in ((N_SOURCE, model.encoder), (N_TOKENS, model.view))]
    source, target = (torch.randint(vocabulary // 4, vocabulary - 1, (n,), generator=generator) for n in limits)
    features = None if is_text else random_features(model.network, seed=2)
    linked = model.trace((source if features is None else features[0], target))
    inputs: dict[str, Any] = (
        {"input_ids": source[None]} if features is None else feature_arguments(model.network, features)
    )
    inputs |= {"decoder_input_ids": target[None], "use_cache": False}
    with CrossRecorder(len(linked.target), len(linked.source)) as cross:
        model.network(**inputs)
    for trace in (linked.source, linked.target):
        side = SimpleNamespace(network=model.network, view=trace.view)
        runs = run_network(side, len(trace), inputs)
        _prove_layers(side, trace, runs, proof)
        for layer, run in enumerate(runs):
            _prove_form(trace.view.layer_heads[layer], run.points[0], run.scores[0], proof)
    proof.add("layers", abs(len(cross.weights) - linked.target.view.layers))
    for layer, (weights, run) in enumerate(zip(cross.weights, runs, strict=True)):
        _prove_cross(linked.target, layer, weights, run, proof)
    proof.skipped |= dict.fromkeys(("padding", "shift"), "an encoder-decoder is compared on one pair")
    return proof


def _prove_cross(trace: Any, layer: int, weights: Float[Tensor, "h t s"], run: BlockRun, proof: Proof) -> None:
    """The weights of cross-attention, and the points after it."""
    own_weights = torch.stack([trace.cross_weights(layer, head) for head in range(len(weights))])
    proof.add("weights, cross", float((own_weights - weights).abs().max()))
    x, update = trace.cross_inputs(layer)[0], trace.cross_displacements(layer).sum(0) + trace.cross_bias(layer)
    tensors = [y[0] for y in run.tensors if y.shape == run.points.shape]
    proof.add("update, cross", min(_relative(expected, y) for expected in (x + update, update) for y in tensors))


class CrossRecorder(TorchDispatchMode):
    """Records every softmax of a target over a source."""

    def __init__(self, n_target: int, n_source: int) -> None:
        super().__init__()
        self.shape, self.weights = (n_target, n_source), list[Tensor]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if function is torch.ops.aten._softmax.default and out.ndim >= 3 and out.shape[-2:] == self.shape:
            self.weights.append(out.reshape(-1, *self.shape))
        return out


def _depends_on_length(long_runs: list[BlockRun], short_runs: list[BlockRun]) -> bool:
    """Whether the same points have other scores in a longer text, as with rotations that follow its length."""
    n = short_runs[0].points.shape[1]
    long, short = long_runs[0], short_runs[0]
    if _relative(long.points[:, :n], short.points) > 1e-9:
        return False
    is_allowed = short.scores > MASKED_BELOW
    return float((long.scores[..., :n, :n] - short.scores)[is_allowed].abs().max()) > 1e-6


def _prove_padded(model: Any, ids: Int[Tensor, "2 n"], side: str, proof: Proof, read_points: PointsReader) -> None:
    """The second text is shorter. Where the network takes positions, each text begins at position 0."""
    is_token, n = torch.ones_like(ids), ids.shape[1]
    tokens = slice(n - N_PADDING) if side == "right" else slice(N_PADDING, None)
    is_token[1] = 0
    is_token[1, tokens] = 1
    inputs = {"attention_mask": is_token}
    if _takes_positions(model.network):
        inputs["position_ids"] = (is_token.cumsum(-1) - 1).clamp(min=0)
    name = f", padded on the {side}"
    try:
        runs = _run_blocks(model, ids * is_token, read_points, **inputs)
    except Exception as error:  # a network may not support padding
        proof.skipped[f"padding on the {side}"] = f"{type(error).__name__}: {error}"[:120]
        return
    for layer, run in enumerate(runs):
        seen = run.weights[1, :, tokens].sum(-1) - run.weights[1, :, tokens, tokens].sum(-1)
        if float(seen.max()) > 1e-9:
            proof.skipped[f"padding on the {side}"] = "the network attends to padding"
            return
        for text, rows in ((0, slice(None)), (1, tokens)):
            _prove_block(model.view.layer_heads[layer], run.points[text, rows], run, text, rows, name, proof)


def _prove_shifted(model: Any, ids: Int[Tensor, "1 n"], proof: Proof, read_points: PointsReader) -> None:
    """At later positions, the same points have the same weights: M depends on distances only."""
    if not _takes_positions(model.network):
        proof.skipped["shift"] = "the network takes no positions"
        return
    try:
        positions = torch.arange(SHIFT, SHIFT + ids.shape[1])[None]
        runs = _run_blocks(model, ids, read_points, position_ids=positions)
    except IndexError as error:
        proof.skipped["shift"] = str(error)[:120]
        return
    for layer, run in enumerate(runs):
        _prove_block(model.view.layer_heads[layer], run.points[0], run, 0, slice(None), ", shifted", proof)


def _takes_positions(network: nn.Module) -> bool:
    return "position_ids" in inspect.signature(network.forward).parameters


def _prove_block(heads: Heads, x: Tensor, run: BlockRun, text: int, rows: slice, name: str, proof: Proof) -> None:
    """The weights of all heads, and the points after attention, which some module of the block reads or returns."""
    weights = run.weights[text, :, rows, rows]
    own_weights = heads.all_weights(x)
    if bool((weights.sum(-1) - 1).abs().max() < 1e-9):  # a sink after the softmax scales rows
        own_weights = own_weights / own_weights.sum(-1, keepdim=True)
    proof.add(f"weights{name}", float((own_weights - weights).abs().max()))
    update = heads.attention_update(x)
    tensors = [y[text, rows] for y in run.tensors if y.shape == run.points.shape]
    gaps = [min((_relative(expected, y) for y in tensors), default=1.0) for expected in (x + update, update)]
    proof.add(f"update{name}", min(gaps))


def _prove_feed_forward(view: Any, layer: int, run: BlockRun, proof: Proof) -> None:
    """Points plus the feed-forward part: the output of the block, or what its last norm reads."""
    x, feed_forward, outputs = run.points[0], view.mlps[layer], run.output
    middle = x + view.layer_heads[layer].attention_update(x)
    try:
        totals = [middle + feed_forward(middle), middle + feed_forward(x)]
    except RheoscopeError as error:
        proof.skipped["feed-forward"] = str(error)[:120]
        return
    gap = 1.0 if outputs is None else min(_relative(total, outputs[0]) for total in totals)
    if gap > 1e-6:  # a norm follows each sum
        tensors = [z[0] for z in run.tensors if z.shape == run.points.shape]
        totals = [z + feed_forward(z) for z in tensors]
        gap = min(_relative(total, z) for total in totals for z in tensors)
    proof.add("feed-forward", gap)


def _prove_form(heads: Heads, x: Float[Tensor, "n d"], scores: Float[Tensor, "h n n"], proof: Proof) -> None:
    """x̂ M x̂ᵀ plus the terms of biases equals the scores of the softmax, up to a constant for every query."""
    if heads.q_norm is not None or heads.k_norm is not None or isinstance(heads.mechanism.score, SoftCap):
        proof.skipped["M"] = "queries and keys have a norm or a cap"
        return
    x_hat, M = heads.norm.normalise(x), heads.M()
    b_Q, b_K = (_constant(heads, W, b) for W, b in ((heads.W_Q, heads.b_Q), (heads.W_K, heads.b_K)))
    queries = x_hat @ M.left + (b_Q * heads.scale)[:, None]
    keys = x_hat @ M.right.mT + b_K[:, None]
    i = torch.arange(len(x))
    bias = heads.mechanism.position.bias(i, i)
    expected = scores if bias is None else scores - bias
    own = []
    offsets = [offset for offset in OFFSETS if offset < len(x)]
    for offset in offsets:
        rotated = queries if M.rotation is None else queries @ M.rotation(offset).to(queries)
        own.append((rotated[:, offset:] * keys[:, : len(x) - offset]).sum(-1))
    for offset, row in zip(offsets, own, strict=True):
        gap = (row - own[0][:, offset:]) - (expected.diagonal(-offset, 1, 2) - expected.diagonal(0, 1, 2)[:, offset:])
        is_allowed = scores.diagonal(-offset, 1, 2) > MASKED_BELOW
        if bool(is_allowed.any()):
            proof.add("M", float(gap[is_allowed].abs().max()) / float(own[0].abs().max()))


def _constant(heads: Heads, W: Float[Tensor, "g d k"], b: Float[Tensor, "g k"] | None) -> Float[Tensor, "h k"]:
    """Queries or keys of a token whose normalised vector is 0."""
    constant = torch.zeros_like(W[:, 0]) if heads.norm.bias is None else heads.norm.bias @ W
    constant = constant if b is None else constant + b
    return constant.repeat_interleave(heads.n_heads // len(W), 0)


def _prove_map(heads: Heads, x: Float[Tensor, "n d"], weights: Float[Tensor, "h n n"], proof: Proof) -> None:
    """Σ α x̂ F plus the terms of biases is the update."""
    if heads.gate is not None or heads.v_norm is not None or heads.output_norm is not None:
        proof.skipped["F"] = "heads have a gate or a norm"
        return
    own_weights = heads.all_weights(x)
    is_scaled = float((own_weights - weights).abs().max()) > 1e-6
    weights = own_weights if is_scaled else weights
    F, x_hat = heads.F(), heads.norm.normalise(x)
    constant = _constant(heads, heads.W_V, heads.b_V)[:, None] @ heads.W_O
    updates = (weights @ x_hat) @ F.left @ F.right + weights.sum(-1, keepdim=True) * constant
    update = (updates if heads.heads_norm is None else updates * heads.heads_norm.scale(heads.outputs(x))).sum(0)
    update = update if heads.b_O is None else update + heads.b_O
    proof.add("F", _relative(update, heads.attention_update(x)))


def _relative(x: Tensor, expected: Tensor) -> float:
    return float((x - expected).norm() / expected.norm().clamp(min=1e-30))
