"""What the page is told in words and numbers: models, traces, verdicts, the catalogue."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from rheoscope import __version__
from rheoscope.catalogue import TABLE, analysis
from rheoscope.picture.token_labels import Words, printable, shown
from rheoscope.report.findings import findings, sentences
from rheoscope.report.question_blocks import note
from rheoscope.report.verdicts import QUESTIONS, Question
from rheoscope.running.runner import Running
from rheoscope.space.predictions import predictions
from rheoscope.space.results import Answers
from rheoscope.space.trace import Trace
from rheoscope.studio.edits import OPERATIONS, Edit
from rheoscope.studio.query_settings import defaults_of
from rheoscope.studio.wire import of_field

if TYPE_CHECKING:
    from rheoscope.studio.session import Session

TOP = 10
"""Predictions that are told."""


def of_state(
    session: "Session", models: list[dict[str, Any]], model: str, example: str | None, corpus: str | None = None
) -> dict[str, Any]:
    """What a page asks first: which models there are, which text it opens on, which corpus it shows, how much it may ask for."""
    limits = session.limits
    return {
        "version": __version__,
        "models": models,
        "model": model,
        "example": example,
        "corpus": corpus,
        "limits": {"tokens": limits.tokens, "text_bytes": limits.text_bytes, "jobs": limits.jobs},
    }


def of_model(name: str, title: str, model: Running | None) -> dict[str, Any]:
    """A model; of one that is not open yet, its name."""
    told: dict[str, Any] = {"id": name, "name": printable(title), "title": printable(title), "ready": model is not None}
    numbers = ("layers", "heads", "width", "family", "parameters", "dtype", "device", "context", "certificate")
    if model is None:
        return told | dict.fromkeys(numbers)
    view, facts = model.view, model.view.facts
    return told | {
        "name": printable(str(facts.get("model", title))),
        "layers": view.layers,
        "heads": view.heads,
        "width": view.width,
        "family": str(facts.get("family", "")),
        "parameters": sum(weight.numel() for weight in model.network.parameters()),
        "dtype": str(facts.get("dtype", "")),
        "device": str(facts.get("device", "")),
        "context": view.context,
        "certificate": str(facts.get("certificate", "")),
    }


def of_trace(
    name: str, model_id: str, words: Words, trace: Trace, text: str, edits: tuple[Edit, ...]
) -> dict[str, Any]:
    """A text as the page first shows it: its tokens, its steps, what comes next."""
    massive = set(trace.massive())
    likely = _predicted(words, trace)
    return {
        "id": name,
        "model": model_id,
        "text": text,
        "tokens": [
            {"text": token, "shown": shown(token), "massive": at in massive} for at, token in enumerate(trace.tokens)
        ],
        "steps": [str(step) for step in trace.steps],
        "layers": trace.view.layers,
        "heads": trace.view.heads,
        "width": trace.view.width,
        "edits": [one.told for one in edits],
        "next": likely[0] if likely else None,
        "top": likely,
        "provenance": trace.provenance,
    }


@torch.no_grad()
def _predicted(words: Words, trace: Trace) -> list[dict[str, Any]]:
    if trace.view.unembed is None:
        return []
    best = predictions(trace.view, trace.points[-1, -1:])[0].exp().topk(min(TOP, len(trace.view.embed)))
    return [
        {"token": word, "shown": shown(word), "probability": float(p), "id": int(one)}
        for word, p, one in zip(words(best.indices.tolist()), best.values, best.indices, strict=True)
    ]


def of_verdict(question: Question, answers: Answers) -> dict[str, Any]:
    """The answer to one of the questions, with the number and the null that it rests on."""
    one = question.verdict(answers)
    rests = one.statements[0] if one.statements else None
    numbers = {} if rests is None else {name: getattr(rests, name) for name in ("value", "null", "spread", "q")}
    return {
        "name": question.name,
        "question": one.question,
        "answer": one.answer,
        "line": one.line,
        "deeper": one.deeper,
        "needs": list(question.needs),
    } | {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def of_verdicts(answers: Answers) -> dict[str, Any]:
    """All answers that can be given by now, and what else was found."""
    told = [of_verdict(one, answers) for one in QUESTIONS if answers.asked(*one.needs)]
    return {"verdicts": told} | of_findings(answers)


def of_findings(answers: Answers) -> dict[str, Any]:
    """What else beats its null, how much was held against chance, and what the answers stand beside."""
    told, tested = findings(answers)
    rows = [{"text": one.text, "analysis": one.analysis, "q": one.q} for one in told]
    return {"findings": rows, "held": sentences(told, tested)[-1], "note": getattr(note(answers)[0], "note", "")}


def of_catalogue(names: Iterable[str] = TABLE) -> dict[str, Any]:
    """Analyses (all, unless they are named) with their fields and settings, the questions, and what can be done to a head."""
    rows = []
    for name in names:
        one = analysis(name)
        rows.append(
            {
                "name": name,
                "question": one.question,
                "needs": one.needs,
                "dear": one.dear,
                "room": TABLE[name].split(".")[1],
                "fields": {field: of_field(one, field) for field in one.fields},
                "settings": defaults_of(one),
            }
        )
    questions = [
        {"name": one.name, "question": one.question, "needs": list(one.needs), "deeper": one.deeper}
        for one in QUESTIONS
    ]
    return {"analyses": rows, "questions": questions, "operations": list(OPERATIONS)}
