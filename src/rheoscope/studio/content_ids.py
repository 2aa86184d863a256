"""Ids of models, texts and results. Equal contents have equal ids."""

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rheoscope.catalogue import analysis_by_name
from rheoscope.picture.token_labels import printable
from rheoscope.report.card_cache import card_name
from rheoscope.space.report_run import Settings
from rheoscope.studio.edits import Edit

if TYPE_CHECKING:
    from rheoscope.studio.session import TextEntry

UNTRAINED_SUFFIX = ".untrained"
"""Suffix of the id of an untrained model."""


def make_model_id(source: str, untrained: bool = False) -> str:
    """The id of a model on the page.

    >>> make_model_id("gpt2"), make_model_id("gpt2", untrained=True)
    ('gpt2', 'gpt2.untrained')
    """
    return printable(source)[:200] + UNTRAINED_SUFFIX * untrained


def make_trace_id(
    weights: str, text: str, edits: Sequence[Edit], window_number: int = 0, source: str | None = None
) -> str:
    """The id of a text in a model with edits: a hash of the contents. Windows count from 1; 0 is the whole text.

    A target has a `source`, too.

    >>> make_trace_id("a1", "The keys", ()) == make_trace_id("a1", "The keys", []), len(make_trace_id("a1", "The keys", ()))
    (True, 20)
    """
    further = [*([window_number] if window_number else []), *([{"source": source}] if source is not None else [])]
    content = json.dumps([weights, text, [edit.json_dict for edit in edits], *further], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:20]


def result_key(entry: "TextEntry", name: str, settings: Settings) -> tuple[str, str, str]:
    """The cache key of a result: its subject (a text, or the weights), the analysis, and the changed settings."""
    analysis = analysis_by_name(name)
    subject_id = entry.id if analysis.reads_text or entry.edits else card_name(entry.model.view.facts)
    defaults = {setting: _json_text(parameter.default) for setting, parameter in analysis.settings.items()}
    changed = {
        setting: value_text
        for setting, value in settings.items()
        if (value_text := _json_text(value)) != defaults.get(setting)
    }
    return subject_id, name, json.dumps(changed, sort_keys=True)


def _json_text(value: Any) -> str:
    return json.dumps(value, default=lambda unserialisable: type(unserialisable).__name__)
