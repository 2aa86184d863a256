"""What the page is told in words and numbers: models, traces, verdicts, the catalogue."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from rheoscope import __version__
from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.picture.token_labels import TokenLabels, display_token, printable
from rheoscope.report.findings import finding_sentences, findings
from rheoscope.report.question_blocks import control_note
from rheoscope.report.verdicts import QUESTIONS
from rheoscope.running.runner import RunnableModel
from rheoscope.space.predictions import next_token_logprobs
from rheoscope.space.questions import Question
from rheoscope.space.results import Results
from rheoscope.space.trace import Trace
from rheoscope.studio.edits import OPERATIONS, Edit
from rheoscope.studio.query_settings import default_settings
from rheoscope.studio.wire import field_json

if TYPE_CHECKING:
    from rheoscope.studio.session import Session

N_PREDICTIONS = 10
"""Predictions that are told."""


def state_json(
    session: "Session",
    models: list[dict[str, Any]],
    model_id: str,
    example_id: str | None,
    corpus_name: str | None = None,
) -> dict[str, Any]:
    """What a page asks first: which models there are, which text it opens on, which corpus it shows, how much it may ask for."""
    limits = session.limits
    return {
        "version": __version__,
        "models": models,
        "model": model_id,
        "example": example_id,
        "corpus": corpus_name,
        "limits": {"tokens": limits.max_tokens, "text_bytes": limits.max_text_bytes, "jobs": limits.max_jobs},
    }


def model_json(model_id: str, title: str, model: RunnableModel | None) -> dict[str, Any]:
    """A model; of one that is not open yet, its name."""
    summary: dict[str, Any] = {
        "id": model_id,
        "name": printable(title),
        "title": printable(title),
        "ready": model is not None,
    }
    detail_keys = ("layers", "heads", "width", "family", "parameters", "dtype", "device", "context", "certificate")
    if model is None:
        return summary | dict.fromkeys(detail_keys)
    view, view_facts = model.view, model.view.facts
    return summary | {
        "name": printable(str(view_facts.get("model", title))),
        "layers": view.layers,
        "heads": view.heads,
        "width": view.width,
        "family": str(view_facts.get("family", "")),
        "parameters": sum(parameter.numel() for parameter in model.network.parameters()),
        "dtype": str(view_facts.get("dtype", "")),
        "device": str(view_facts.get("device", "")),
        "context": view.context_length,
        "certificate": str(view_facts.get("certificate", "")),
    }


def trace_json(
    trace_id: str, model_id: str, token_strings: TokenLabels, trace: Trace, text: str, edits: tuple[Edit, ...]
) -> dict[str, Any]:
    """A text as the page first shows it: its tokens, its steps, what comes next."""
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
    if trace.view.unembed is None:
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


def verdict_json(question: Question, results: Results) -> dict[str, Any]:
    """The answer to one of the questions, with the number and the null that it rests on."""
    verdict = question.verdict(results)
    statement = verdict.statements[0] if verdict.statements else None
    numbers = {} if statement is None else {name: getattr(statement, name) for name in ("value", "null", "spread", "q")}
    return {
        "name": question.name,
        "question": verdict.question,
        "answer": verdict.answer,
        "line": verdict.line,
        "deeper": verdict.deeper,
        "needs": list(question.needs),
    } | {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def verdicts_json(results: Results) -> dict[str, Any]:
    """All answers that can be given by now, and what else was found."""
    verdicts = [verdict_json(question, results) for question in QUESTIONS if results.has_run(*question.needs)]
    return {"verdicts": verdicts} | findings_json(results)


def findings_json(results: Results) -> dict[str, Any]:
    """What else beats its null, how much was held against chance, and what the answers stand beside."""
    significant, corrected_statements = findings(results)
    rows = [{"text": statement.text, "analysis": statement.analysis, "q": statement.q} for statement in significant]
    return {
        "findings": rows,
        "held": finding_sentences(significant, corrected_statements)[-1],
        "note": getattr(control_note(results)[0], "note", ""),
    }


def catalogue_json(names: Iterable[str] = ANALYSIS_MODULES) -> dict[str, Any]:
    """Analyses (all, unless they are named) with their fields and settings, the questions, and what can be done to a head."""
    rows = []
    for name in names:
        analysis = analysis_by_name(name)
        rows.append(
            {
                "name": name,
                "question": analysis.question,
                "needs": analysis.needs,
                "dear": analysis.expensive,
                "room": ANALYSIS_MODULES[name].split(".")[1],
                "fields": {field: field_json(analysis, field) for field in analysis.fields},
                "settings": default_settings(analysis),
            }
        )
    questions = [
        {"name": question.name, "question": question.question, "needs": list(question.needs), "deeper": question.deeper}
        for question in QUESTIONS
    ]
    return {"analyses": rows, "questions": questions, "operations": list(OPERATIONS)}
