"""Where tokens stand: one module for each kind of position, felt in one way each, as the formulas of attention say."""

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
from tests.models.outside import POSITIONS, made, tiny

ADDED, TURNED, BETWEEN = {"learned", "sinusoidal"}, {"rotary"}, {"alibi", "buckets"}


def place(kind: str, **more: Any) -> PositionEncoding:
    found: PositionEncoding = made(position=kind, **more).stack.place
    return found


def later(n: int) -> Tensor:
    return ~torch.ones(n, n, dtype=torch.bool).tril()


def test_every_position_of_a_config_is_built() -> None:
    assert tuple(POSITION_ENCODINGS) == CHOICES["position"] == POSITIONS


@pytest.mark.parametrize("kind", POSITIONS)
def test_a_kind_is_felt_in_one_way(kind: str) -> None:
    of, x = place(kind), random(1, 1, 5, 16)
    assert (of.add_to_embeddings(x, slice(2, 7)) is not x) == (kind in ADDED)
    assert (of.rotation(slice(0, 5)) is not None) == (kind in TURNED)
    assert (of.pair_bias() is not None) == (kind in BETWEEN)
    wanted = {"rotary": ModelRotary, "alibi": ALiBi, "buckets": Buckets}
    assert type(of.position()) is wanted.get(kind, NoPosition)


@pytest.mark.parametrize("kind", sorted(ADDED))
def test_what_is_added_is_the_row_of_the_place(kind: str) -> None:
    of, x = place(kind), random(1, 2, 5, 16)
    rows = of.table[3:8] if kind == "learned" else sinusoidal_table(torch.arange(3, 8), 16)
    assert gap(of.add_to_embeddings(x, slice(3, 8)) - x, rows.expand(2, 5, 16)) < 1e-6


def test_rotary_tables_turn_as_the_formula_does() -> None:
    """By tables in float32, inside the longest text and beyond it."""
    of, x = POSITION_ENCODINGS["rotary"](tiny(head_width=6, base=50.0), True), random(2, 2, 3, 5, 6)
    for start in (0, 17, 40):
        at = start + torch.arange(5)
        assert gap(of.position().encode(x, at), Rotary(base=50.0).encode(x, at)) < 1e-5
    turn = of.rotation(slice(17, 22))
    assert turn is not None
    assert torch.equal(turn(x), of.position().encode(x, 17 + torch.arange(5)))


def test_rotary_turns_by_offset_alone() -> None:
    """Scores depend on i - j: R(i) R(j)ᵀ = R(i - j), and the first position stays where it is."""
    model = made(depth=1)
    place, attention = model.stack.place, model.stack.blocks[0].attention
    u = random(1, 1, 6, 16)
    near, far = (attention.project(u, place.rotation(torch.arange(6) + start)) for start in (0, 17))
    plain = attention.project(u)
    assert gap(near[0] @ near[1].mT, far[0] @ far[1].mT) < 1e-6
    assert gap(near[0][:, :, 0], plain[0][:, :, 0]) < 1e-6
    assert gap(near[0], plain[0]) > 1e-2
    cos, sin = rotary_tables(torch.arange(24), 4)
    assert gap(cos[3], torch.tensor([3.0, 0.03]).cos()) < 1e-6
    assert gap(sin[3], torch.tensor([3.0, 0.03]).sin()) < 1e-6


@pytest.mark.parametrize("form", ["encoder", "decoder"])
def test_buckets_are_those_of_t5(form: str) -> None:
    """A decoder spends every bucket on the past, an encoder half of them."""
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=8, d_kv=4, num_heads=4, is_decoder=form == "decoder")
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    place = made(form=form, position="buckets").stack.place
    with torch.no_grad():
        theirs.relative_attention_bias.weight.copy_(place.table)
        ours = place.pair_bias().bias(torch.arange(200), torch.arange(200))
        past = later(200).T if form == "decoder" else torch.ones(200, 200, dtype=torch.bool)
        assert gap(ours[:, past], theirs.compute_bias(200, 200)[0][:, past]) < 1e-6


def test_alibi_has_a_slope_a_head() -> None:
    model = made(position="alibi", depth=1)
    bias = model.stack.place.pair_bias().bias(torch.arange(5), torch.arange(5))
    assert bias[:, 4, 2].tolist() == [-2 * 2.0 ** (-2 * h) for h in range(1, 5)]
