"""Values in a terminal and in a notebook: one line each, and a card with all text escaped."""

from typing import Any

import torch

import rheoscope as rs
from rheoscope.models.config import Config
from rheoscope.models.transformer import Translator
from tests.report.cases import TEXT, small


def all_values() -> list[Any]:
    """One value of every class that a user may print."""
    torch.manual_seed(0)
    config = Config(vocabulary=9, width=8, depth=1, heads=2, form="encoder-decoder")
    translator, model = rs.load(Translator(config)), small()
    view = model.view
    head = view.head(1, 2)
    traces = [model.trace(TEXT * 9), model.trace([TEXT, "The keys"]), translator.trace(([5, 6, 2], [1, 8]))]
    parts = [head, head.M, head.F, view.layer_heads[0], view.final_norm, translator.view.cross_heads[0]]
    return [model, view, model.description, translator, translator.view, *traces, *parts]


def test_every_value_is_one_short_line() -> None:
    for value in all_values():
        assert len(repr(value)) < 320, type(value)
        assert "\n" not in repr(value)


def test_a_model_and_a_trace_print_their_size() -> None:
    line = repr(small())
    for part in ("rheoscope decoder", "3 layers × 4 heads", "width 16", "float32 on cpu", "parameters"):
        assert part in line
    trace = small().trace(TEXT)
    for part in (f"{len(trace)} tokens", "The keys", f"{len(trace.points)} points", "width 16"):
        assert part in repr(trace)


def test_a_notebook_shows_a_card_with_escaped_text() -> None:
    model = small()
    trace = model.trace("The <script>alert(1)</script> & keys to the cabinet")
    for value in (model, model.view, model.view.head(0, 1), trace):
        assert len(value._repr_html_()) < 20_000
    card = trace._repr_html_()
    assert "<script" not in card
    assert "&lt;" in card
    assert card.count("<code") == len(trace)
    assert card.count("<svg") == 1
    assert card.count("<circle") == len(trace) - len(trace.massive_tokens())
    assert "<svg" not in model.trace("The")._repr_html_()
