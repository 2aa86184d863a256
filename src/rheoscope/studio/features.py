"""The sparse dictionary of a studio: for which texts and layers scores are shown by feature."""

from typing import TYPE_CHECKING

from rheoscope.catalogue import analysis_by_name
from rheoscope.running.feature_components import is_described
from rheoscope.running.features import Features
from rheoscope.space.report_run import Settings

if TYPE_CHECKING:
    from rheoscope.studio.session import Session, TextEntry


def features_of(session: "Session", entry: "TextEntry", layer: int | None = None) -> Features | None:
    """The dictionary of a server if it belongs to the model of a text and describes the input of a layer (default: any layer)."""
    trace, opened_model = entry.trace, entry.opened_model
    is_first_model = opened_model.source == session.first_model and not opened_model.untrained
    has_layer = layer is None or -trace.view.layers <= layer < trace.view.layers
    if session.features is None or not is_first_model or not has_layer:
        return None
    step = len(trace.steps) - 1 if layer is None else trace.input_steps[layer]
    return session.features if is_described(trace, session.features, step) else None


def settings_with_features(session: "Session", entry: "TextEntry", name: str, settings: Settings) -> Settings:
    """The settings of an analysis, with the dictionary of the server if the analysis takes one and it applies."""
    features = (
        features_of(session, entry, settings.get("layer")) if "features" in analysis_by_name(name).settings else None
    )
    return settings if features is None else {**settings, "features": features}
