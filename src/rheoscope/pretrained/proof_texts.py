"""The texts on which a View is proved: at window edges, at the switch of a rotary scaling, at the last position, and padded.

A far edge needs no long run. The network makes its masks and its tables of positions for a long text, and its blocks receive the
rows and columns of a few tokens. Positions beyond that are given as `position_ids`.
"""

import inspect
import random
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from rheoscope.attention.mask import Chunks, Intersection, Mask, Window
from rheoscope.messages.message import Message
from rheoscope.pretrained.hf_model import Pretrained
from rheoscope.pretrained.network_inputs import network_sizes
from rheoscope.running.certificate import PROBE_TOKENS, probe_ids
from rheoscope.running.stream import ModelDescription
from rheoscope.running.thread_hooks import ModuleHook, apply_module_hooks
from rheoscope.space.head import Heads
from rheoscope.space.model_parts import ModelRotary

LONGEST_MASK = 8200
"""Masks of longer texts are not made: they have an entry for every pair of tokens."""
PADDED_TOKENS = 2
"""The first and the last token of a padded text are padding."""

LEFT_PADDING_UNTESTED = Message("padding on the left (the network returns NaN)")


SIZE_NAME = re.compile(r"(window|chunk)(_size)?$|^local_attention$")
"""Names of config fields that hold the size of a window or of chunks."""


@dataclass(frozen=True, eq=False)
class ProofBatch:
    """Texts of `length` tokens, of which the blocks of the network read those at `indices`.

    `positions` are the position ids of these tokens, and `is_token` marks those that are no padding.
    """

    ids: Int[Tensor, " n"]
    indices: Int[Tensor, " n"]
    length: int
    positions: Int[Tensor, "b n"]
    is_token: Bool[Tensor, "b n"]
    takes_positions: bool = False

    def inputs(self, device: torch.device) -> dict[str, Any]:
        """What the network reads: no mask for a text without padding."""
        ids = self.ids[:1].repeat(len(self.positions), self.length)
        ids[:, self.indices] = self.ids
        inputs: dict[str, Any] = {"input_ids": ids.to(device), "use_cache": False}
        if not bool(self.is_token.all()):
            is_token = torch.ones_like(ids)
            is_token[:, self.indices] = self.is_token.long()
            inputs["attention_mask"] = is_token.to(device)
        if self.takes_positions:
            positions = torch.zeros_like(ids)
            positions[:, self.indices] = self.positions
            inputs["position_ids"] = positions.to(device)
        return inputs

    @property
    def without_left_padding(self) -> "ProofBatch":
        """The same texts with padding on the right only."""
        is_token = self.is_token.clone()
        is_token[:, 0] = True
        return replace(self, is_token=is_token)

    @property
    def padded_text(self) -> "ProofBatch":
        """The padded text alone."""
        return replace(self, positions=self.positions[1:], is_token=self.is_token[1:])


@dataclass(frozen=True, eq=False)
class ProofPlan:
    """The batches of a proof, the windows and switches whose edges they contain, and what they leave out."""

    batches: tuple[ProofBatch, ...]
    windows: tuple[int, ...] = ()
    switches: tuple[int, ...] = ()
    untested: tuple[Message, ...] = ()

    @property
    def without_left_padding(self) -> "ProofPlan":
        """The same proof with padding on the right only."""
        batches = tuple(batch.without_left_padding for batch in self.batches)
        return replace(self, batches=batches, untested=(*self.untested, LEFT_PADDING_UNTESTED))


def plain_batch(ids: Int[Tensor, " n"]) -> ProofBatch:
    """One text without padding, at its first positions."""
    places = torch.arange(len(ids))
    return ProofBatch(ids, places, len(ids), places[None], torch.ones(1, len(ids)).bool())


def plan_proof(model: Pretrained) -> ProofPlan:
    """The texts on which a View is proved, if possible in one pass of the network.

    The first text has no padding and reaches the edges of windows. The second is padded on both sides, and its tokens are at far
    positions if queries rotate.
    """
    view, limit = model.view, model.view.context_length
    plain = plain_batch(probe_ids(view))
    inputs = inspect.signature(model.network.base_model.forward).parameters
    if len(plain.ids) <= PADDED_TOKENS:
        return ProofPlan((plain,), untested=(Message("padding (the model reads too few tokens)"),))
    if "attention_mask" not in inputs:
        return ProofPlan((plain,), untested=(Message("padding and far positions (the network takes no mask)"),))
    rotates = any(map(_rotates, view.layer_heads))
    if rotates and limit is not None and "position_ids" in inputs:
        return _plan_rotations(model, limit)
    windows, untested = _reachable_windows(model, limit)
    batch = _batch(model, _places(windows, PROBE_TOKENS, limit), None)
    reason = (Message("far positions (the network takes none)"),) if rotates else ()
    return ProofPlan((batch,), windows, untested=(*reason, *untested))


def _plan_rotations(model: Pretrained, limit: int) -> ProofPlan:
    """The texts of a network whose queries rotate.

    If rotations follow the length of a text, a pass beyond the switch comes first, so that the network ends as it began.
    """
    switches = tuple(sorted(x for x in rotary_switches(model.network.config) if x < limit))
    far = {x for x in {limit - 1}.union(*map(_around, switches)) if 0 <= x < limit}
    is_long = bool(switches) and follows_length(model, limit - 1)
    windows, untested = _reachable_windows(model, switches[0] if is_long else limit)
    indices = _places(windows, len(far) + PADDED_TOKENS, limit)
    n_far = len(indices) - PADDED_TOKENS
    batch = _batch(model, indices, _far_places(far, n_far, limit))
    if not is_long:
        return ProofPlan((batch,), windows, switches, untested)
    near = _batch(model, indices, _far_places({switches[0] - 1}, n_far, switches[0]))
    return ProofPlan((batch.padded_text, near), windows, switches, untested)


def rotary_switches(config: Any) -> set[int]:
    """The positions from which a rotary scaling may differ: the longest texts of pretraining before it."""
    text_config = config.get_text_config()
    parameters = getattr(text_config, "rope_parameters", None) or {}
    groups = [vars(text_config), parameters, *(x for x in parameters.values() if isinstance(x, dict))]
    switches = {group.get("original_max_position_embeddings") for group in groups}
    return {int(x) for x in switches if isinstance(x, int | float) and x > 1}


def follows_length(model: Pretrained, last: int) -> bool:
    """Whether the rotation of a token depends on the last position of its text."""
    rotations = {x.mechanism.position.rotate: x for x in model.view.layer_heads if _rotates(x)}  # type: ignore[attr-defined]
    return any(_follows_length(heads, last, model.device) for heads in rotations.values())


def _follows_length(heads: Heads, last: int, device: torch.device) -> bool:
    x = torch.ones(1, 1, 2, heads.W_Q.shape[-1], device=device)
    ends = (torch.tensor([1, end], device=device) for end in (last, 2))
    far, near = (heads.mechanism.position.encode(x, positions)[0, 0, 0] for positions in ends)
    return not torch.equal(near, far)


def _rotates(heads: Heads) -> bool:
    return isinstance(heads.mechanism.position, ModelRotary)


def config_sizes(config: Any) -> set[int]:
    """The sizes in a config that may be those of windows or chunks: a description that misses one is wrong beyond it."""
    text_config = config.get_text_config()
    values = [
        getattr(text_config, "sliding_window", None),
        *(x for name, x in vars(text_config).items() if SIZE_NAME.search(name)),
    ]
    return {int(x) for x in values if isinstance(x, int) and x > 1}


def mask_sizes(mask: Mask) -> set[int]:
    """The sizes of the windows and chunks of a mask."""
    if isinstance(mask, Intersection):
        return mask_sizes(mask.a) | mask_sizes(mask.b)
    return {mask.size} if isinstance(mask, Window | Chunks) else set()


def _reachable_windows(model: Pretrained, limit: int | None) -> tuple[tuple[int, ...], tuple[Message, ...]]:
    """The windows whose edges are tested, and a message for each whose mask would be too large. Texts may end before an edge."""
    masks = [heads.mechanism.mask for heads in model.view.layer_heads]
    sizes = sorted(config_sizes(model.network.config).union(*map(mask_sizes, masks)))
    reached = [size for size in sizes if limit is None or size + 1 < limit]
    windows = tuple(size for size in reached if size + PADDED_TOKENS <= LONGEST_MASK)
    too_large = reached[len(windows) :]
    return windows, tuple(Message("a window of {size:,} (its mask is too large)", size=size) for size in too_large)


def _around(place: int) -> set[int]:
    return {place - 1, place, place + 1}


def _places(windows: Iterable[int], n: int, limit: int | None) -> Int[Tensor, " n"]:
    """The first positions and the edges of windows: at least `n` if the model reads as many."""
    places = {0, 1, 2}.union(*map(_around, windows))
    n = max(PROBE_TOKENS, n, len(places))
    places |= set([x for x in range(2 * n) if x not in places][: n - len(places)])
    return torch.tensor(sorted(x for x in places if limit is None or x < limit))


def _far_places(required: set[int], n: int, limit: int) -> Int[Tensor, " n"]:
    """The required positions and random ones below the limit, in their order."""
    randoms = random.Random(0).sample(range(limit), min(limit, n + len(required)))
    return torch.tensor(sorted([*sorted(required), *(x for x in randoms if x not in required)][:n]))


def _batch(model: Pretrained, indices: Int[Tensor, " n"], far: Int[Tensor, " m"] | None) -> ProofBatch:
    """A whole text and a padded one, whose tokens are at the positions `far`."""
    n, vocabulary = len(indices), len(model.view.embed)
    positions, is_token = indices.repeat(2, 1), torch.ones(2, n).bool()
    is_token[1, 0] = is_token[1, -1] = False
    if far is not None:
        positions[1, 1:-1] = far
    first = int(indices[-1]) + 1
    sizes = network_sizes(model.network) if first > n else set()
    length = next(x for x in count(first) if x not in sizes)
    ids = torch.linspace(vocabulary // 3, vocabulary - 1, n).long()
    return ProofBatch(ids, indices, length, positions, is_token, far is not None)


@contextmanager
def selected_tokens(network: nn.Module, description: ModelDescription, batch: ProofBatch) -> Iterator[None]:
    """Inside, the blocks of a network receive the rows and columns of the tokens of a batch."""
    if batch.length == len(batch.indices):
        yield
        return

    def select(x: Tensor) -> Tensor:
        for axis in [axis for axis, size in enumerate(x.shape) if size == batch.length]:
            x = x.index_select(axis, batch.indices.to(x.device))
        return x

    def select_all(args: Any, kwargs: dict[str, Any]) -> Any:
        return tree_map_only(Tensor, select, (args, kwargs))

    with apply_module_hooks([ModuleHook(block, "in", select_all) for block in _token_readers(network, description)]):
        yield


def _token_readers(network: nn.Module, description: ModelDescription) -> set[nn.Module]:
    """The blocks of a network, and the modules at the ends of its stream."""
    ends = {description.embed_tap.module, *(taps[-1].module for taps in description.layer_taps)}
    lists = [set(x) for x in network.modules() if isinstance(x, nn.ModuleList)]
    blocks = [x for x in lists if not ends.isdisjoint(x)]
    if not blocks:  # points are mixed inside of a block
        blocks = [x for x in lists if any(not ends.isdisjoint(block.modules()) for block in x)]
    return ends.union(*blocks)
