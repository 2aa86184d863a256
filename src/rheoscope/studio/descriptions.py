"""JSON descriptions for the page: the state, models, traces, stories and the catalogue."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from rheoscope import __version__
from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.picture.token_labels import TokenLabels, display_token, printable
from rheoscope.report.findings import finding_sentences, findings
from rheoscope.report.next_steps import card_line
from rheoscope.report.story import STORY_LINES, lines_of
from rheoscope.running.encoder_decoder import EncoderDecoder
from rheoscope.running.runner import RunnableModel
from rheoscope.space.predictions import next_token_logprobs
from rheoscope.space.results import Results
from rheoscope.space.story_line import StoryLine
from rheoscope.space.trace import Trace
from rheoscope.studio.edits import OPERATIONS, Edit
from rheoscope.studio.query_settings import default_settings
from rheoscope.studio.wire import field_json

if TYPE_CHECKING:
    from rheoscope.studio.session import Session

N_PREDICTIONS = 10
"""Number of predictions that a trace lists."""


def state_json(
    session: "Session",
    models: list[dict[str, Any]],
    model_id: str,
    example_id: str | None,
    corpus_name: str | None = None,
    has_runs: bool = False,
) -> dict[str, Any]:
    """The first response to a page: the models, the text to open, the corpus, whether there are training runs, and the limits."""
    limits = session.limits
    return {
        "version": __version__,
        "models": models,
        "model": model_id,
        "example": example_id,
        "corpus": corpus_name,
        "runs": has_runs,
        "limits": {"tokens": limits.max_tokens, "text_bytes": limits.max_text_bytes, "jobs": limits.max_jobs},
    }


def model_json(model_id: str, title: str, model: RunnableModel | None) -> dict[str, Any]:
    """A model. Before it is loaded, only its name is filled in."""
    summary: dict[str, Any] = {
        "id": model_id,
        "name": title,
        "title": title,
        "ready": model is not None,
        "pair": isinstance(model, EncoderDecoder),
    }
    detail_keys = ("layers", "heads", "width", "family", "parameters", "dtype", "device", "context", "certificate")
    if model is None:
        return summary | dict.fromkeys(detail_keys)
    view, view_facts = model.view, model.view.facts
    certificate = view_facts.get("certificate")
    return summary | {
        "name": printable(str(view_facts["model"])) if "model" in view_facts else title,
        "layers": view.layers,
        "heads": view.heads,
        "width": view.width,
        "family": str(view_facts.get("family", "")),
        "parameters": sum(parameter.numel() for parameter in model.network.parameters()),
        "dtype": str(view_facts.get("dtype", "")),
        "device": str(view_facts.get("device", "")),
        "context": view.context_length,
        "certificate": "" if certificate is None else certificate.summary,
    }


def trace_json(
    trace_id: str, model_id: str, token_strings: TokenLabels, trace: Trace, text: str, edits: tuple[Edit, ...]
) -> dict[str, Any]:
    """A traced text: its tokens, its steps and the predicted next tokens."""
    massive_tokens = set(trace.massive_tokens())
    top_predictions = _top_predictions(token_strings, trace)
    return {
        "id": trace_id,
        "model": model_id,
        "text": text,
        "tokens": [
            {"text": token_text, "shown": display_token(token_text), "massive": position in massive_tokens}
            for position, token_text in enumerate(trace.tokens)
        ],
        "steps": [str(step) for step in trace.steps],
        "layers": trace.view.layers,
        "heads": trace.view.heads,
        "width": trace.view.width,
        "edits": [edit.json_dict for edit in edits],
        "next": top_predictions[0] if top_predictions else None,
        "top": top_predictions,
        "provenance": trace.provenance,
    }


@torch.no_grad()
def _top_predictions(token_strings: TokenLabels, trace: Trace) -> list[dict[str, Any]]:
    if not trace.view.predicts_tokens:
        return []
    top = (
        next_token_logprobs(trace.view, trace.points[-1, -1:])[0].exp().topk(min(N_PREDICTIONS, len(trace.view.embed)))
    )
    return [
        {
            "token": token_text,
            "shown": display_token(token_text),
            "probability": float(probability),
            "id": int(token_id),
        }
        for token_text, probability, token_id in zip(
            token_strings(top.indices.tolist()), top.values, top.indices, strict=True
        )
    ]


def line_json(line: StoryLine, results: Results) -> dict[str, Any]:
    """A line of the story, with the analyses behind it."""
    return {
        "name": line.name,
        "title": line.title,
        "sentence": line.sentence(results),
        "deeper": line.deeper,
        "needs": list(line.needs),
    }


def card_json(results: Results) -> dict[str, Any]:
    """What the card of the model answers, in a sentence. It is None for a model that reads no text."""
    return {"sentence": card_line(results) if results.view.reads_tokens else None}


def story_json(results: Results) -> dict[str, Any]:
    """All lines of the story that are available so far, the line about the model, and the findings."""
    lines = [line_json(line, results) for line in lines_of(results.view) if results.has_run(*line.needs)]
    return {"story": lines, "card": card_json(results)} | findings_json(results)


def findings_json(results: Results) -> dict[str, Any]:
    """The significant findings, and how many statistics were tested."""
    significant, corrected_statements = findings(results)
    rows = [{"text": statement.text, "analysis": statement.analysis, "q": statement.q} for statement in significant]
    return {
        "findings": rows,
        "held": finding_sentences(significant, corrected_statements)[-1],
    }


def catalogue_json(names: Iterable[str] = ANALYSIS_MODULES) -> dict[str, Any]:
    """The analyses (default: all) with their fields and settings, the lines of the story, and the edits of a head."""
    rows = []
    for name in names:
        analysis = analysis_by_name(name)
        rows.append(
            {
                "name": name,
                "question": analysis.question,
                "needs": analysis.needs,
                "expensive": analysis.expensive,
                "room": ANALYSIS_MODULES[name].split(".")[1],
                "fields": {field: field_json(analysis, field) for field in analysis.fields},
                "settings": default_settings(analysis),
            }
        )
    lines = [
        {"name": line.name, "title": line.title, "needs": list(line.needs), "reads_source": line.reads_source}
        for line in STORY_LINES
    ]
    return {"analyses": rows, "story": lines, "operations": list(OPERATIONS)}
