"""Tests of the picture of `operators`."""

from transformers import GPT2Config, GPT2LMHeadModel

import rheoscope as rs


def test_every_field_has_a_map_of_layers_and_heads() -> None:
    model = rs.load(GPT2LMHeadModel(GPT2Config(n_layer=3, n_head=2, n_embd=8, vocab_size=9, n_positions=16)))
    figure = rs.plot(rs.operators(model.view))
    maps = [axis.images[0].get_array() for axis in figure.axes if axis.images]
    assert len(maps) == 7
    assert all(values.shape == (3, 2) for values in maps)
