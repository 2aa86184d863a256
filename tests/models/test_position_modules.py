"""Position encodings: each kind acts in one way and follows the formulas of attention."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rheoscope.attention.position import NoPosition, Rotary, rotary_tables, sinusoidal_table
from rheoscope.attention.position_bias import ALiBi, Buckets
from rheoscope.models.config import CHOICES
from rheoscope.models.position_modules import POSITION_ENCODINGS, PositionEncoding
from rheoscope.space.model_parts import ModelRotary
from tests.attention.cases import gap, random
from tests.models.outside import POSITIONS, random_model, tiny

ADDED, ROTATED, PAIRWISE = {"learned", "sinusoidal"}, {"rotary"}, {"alibi", "buckets"}


def position_module(kind: str, **more: Any) -> PositionEncoding:
    encoding: PositionEncoding = random_model(position=kind, **more).stack.place
    return encoding


def future_mask(n: int) -> Tensor:
    return ~torch.ones(n, n, dtype=torch.bool).tril()


def test_every_position_of_a_config_is_built() -> None:
    assert tuple(POSITION_ENCODINGS) == CHOICES["position"] == POSITIONS


@pytest.mark.parametrize("kind", POSITIONS)
def test_each_kind_acts_in_one_way(kind: str) -> None:
    module, x = position_module(kind), random(1, 1, 5, 16)
    assert (module.add_to_embeddings(x, slice(2, 7)) is not x) == (kind in ADDED)
    assert (module.rotation(slice(0, 5)) is not None) == (kind in ROTATED)
    assert (module.pair_bias() is not None) == (kind in PAIRWISE)
    expected_types = {"rotary": ModelRotary, "alibi": ALiBi, "buckets": Buckets}
    assert type(module.position()) is expected_types.get(kind, NoPosition)


@pytest.mark.parametrize("kind", sorted(ADDED))
def test_the_table_row_of_the_position_is_added(kind: str) -> None:
    module, x = position_module(kind), random(1, 2, 5, 16)
    rows = module.table[3:8] if kind == "learned" else sinusoidal_table(torch.arange(3, 8), 16)
    assert gap(module.add_to_embeddings(x, slice(3, 8)) - x, rows.expand(2, 5, 16)) < 1e-6


def test_rotary_tables_follow_the_formula() -> None:
    """With float32 tables, inside the context and beyond it."""
    module, x = POSITION_ENCODINGS["rotary"](tiny(head_width=6, base=50.0), True), random(2, 2, 3, 5, 6)
    for start in (0, 17, 40):
        positions = start + torch.arange(5)
        assert gap(module.position().encode(x, positions), Rotary(base=50.0).encode(x, positions)) < 1e-5
    rotation = module.rotation(slice(17, 22))
    assert rotation is not None
    assert torch.equal(rotation(x), module.position().encode(x, 17 + torch.arange(5)))


def test_rotary_scores_depend_only_on_the_offset() -> None:
    """R(i) R(j)ᵀ = R(i - j), and the first position is not rotated."""
    model = random_model(depth=1)
    position_module, attention = model.stack.place, model.stack.blocks[0].attention
    u = random(1, 1, 6, 16)
    near, far = (attention.project(u, position_module.rotation(torch.arange(6) + start)) for start in (0, 17))
    plain = attention.project(u)
    assert gap(near[0] @ near[1].mT, far[0] @ far[1].mT) < 1e-6
    assert gap(near[0][:, :, 0], plain[0][:, :, 0]) < 1e-6
    assert gap(near[0], plain[0]) > 1e-2
    cos, sin = rotary_tables(torch.arange(24), 4)
    assert gap(cos[3], torch.tensor([3.0, 0.03]).cos()) < 1e-6
    assert gap(sin[3], torch.tensor([3.0, 0.03]).sin()) < 1e-6


@pytest.mark.parametrize("form", ["encoder", "decoder"])
def test_buckets_equal_those_of_t5(form: str) -> None:
    """A decoder uses every bucket for the past, an encoder half of them."""
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=8, d_kv=4, num_heads=4, is_decoder=form == "decoder")
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    position_module = random_model(form=form, position="buckets").stack.place
    with torch.no_grad():
        theirs.relative_attention_bias.weight.copy_(position_module.table)
        ours = position_module.pair_bias().bias(torch.arange(200), torch.arange(200))
        past = future_mask(200).T if form == "decoder" else torch.ones(200, 200, dtype=torch.bool)
        assert gap(ours[:, past], theirs.compute_bias(200, 200)[0][:, past]) < 1e-6


def test_alibi_has_one_slope_per_head() -> None:
    model = random_model(position="alibi", depth=1)
    bias = model.stack.place.pair_bias().bias(torch.arange(5), torch.arange(5))
    assert bias[:, 4, 2].tolist() == [-2 * 2.0 ** (-2 * h) for h in range(1, 5)]
