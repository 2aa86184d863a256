"""Answers of the default model to one text, written as the studio's wire has them, for the page's development without a server.

    python frontend/mock/answers.py frontend/mock/answers
"""

import dataclasses
import json
import math
import struct
import sys
from pathlib import Path

import numpy as np

import rheoscope as rs
from rheoscope import catalogue
from rheoscope.report.drawing import picture_of
from rheoscope.report.verdicts import QUESTIONS

TEXT = (
    "The king kept his gold in the bank, and the children played on the bank of the river. The river went to the sea, and "
    "the sea was great and deep. One day the king took the gold from the bank, put it in a ship and sent the ship down the"
)
ASKED = ("trajectory", "transport", "clusters", "energy", "agreement", "operators", "readout", "composition", "head_types")


def plain(x):
    if dataclasses.is_dataclass(x):
        told = {f.name: plain(getattr(x, f.name)) for f in dataclasses.fields(x)}
        name = type(x).__name__.lower()
        return {"mark": name} | told if name in ("line", "shape", "cells", "word") else told
    if isinstance(x, np.ndarray):
        return plain(x.tolist())
    if isinstance(x, (list, tuple, range)):
        return [plain(one) for one in x]
    if isinstance(x, (set, frozenset)):
        return [list(one) for one in x]
    if isinstance(x, dict):
        return {str(k): plain(v) for k, v in x.items()}
    if isinstance(x, (np.floating, float)):
        return float(x) if math.isfinite(x) else None
    if isinstance(x, np.integer):
        return int(x)
    return x if isinstance(x, (str, int, bool, type(None))) else str(x)


def envelope(header, arrays):
    told, payload = [], b""
    for name, (array, dims) in arrays.items():
        payload += b"\0" * (-len(payload) % 8)
        told.append({"name": name, "dtype": str(array.dtype), "shape": list(array.shape), "dims": dims, "offset": len(payload)})
        payload += array.tobytes()
    text = json.dumps(header | {"arrays": told}).encode()
    text += b" " * (-(len(text) + 8) % 8)
    return b"RHEO" + struct.pack("<I", len(text)) + text + payload


def main(home):
    def put(path, value):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_bytes(value if isinstance(value, bytes) else json.dumps(plain(value)).encode())

    model = rs.load()
    trace = model.trace(TEXT, logits=True)
    steps, n = [str(s) for s in trace.steps], len(trace)
    layers = len(trace.where)
    heads = int(trace.statistics(0)["entropy"].shape[0])
    one = {"id": "default", "name": "default", "title": "The model that ships", "layers": layers, "heads": heads,
           "width": int(trace.points.shape[-1]), "family": "gpt", "parameters": 0, "dtype": "float32", "device": "cpu",
           "certificate": "mock", "ready": True}
    put("api/state.json", {"version": rs.__version__, "models": [one], "model": "default", "example": "example",
                           "limits": {"tokens": 1024, "text_bytes": 20000, "jobs": 4}, "languages": ["en", "zh"]})
    put("api/models.json", {"models": [one], "recent": []})
    rows = []
    for name in catalogue.names():
        a = catalogue.analysis(name)
        rows.append({"name": name, "question": a.question, "needs": a.needs, "dear": a.dear,
                     "room": catalogue.TABLE[name].split(".")[1], "settings": {k: plain(v.default) for k, v in a.settings.items()},
                     "fields": {k: {"dims": list(f.dims), "definition": f.definition, "unit": f.unit, "null": f.null,
                                    "null_sd": f.null_sd, "basis": f.basis, "gauge": f.gauge} for k, f in a.fields.items()}})
    put("api/catalogue.json", {"analyses": rows, "questions": [{"name": q.name, "question": q.question, "needs": list(q.needs), "deeper": q.deeper} for q in QUESTIONS], "operations": [
        {"name": o, "title": o, "takes": t} for o, t in (("symmetric", ""), ("skew", ""), ("rank", "rank"), ("offset0", ""), ("ablate", ""), ("scale", "factor"))]})
    words = trace.tokens
    massive = set(trace.massive())
    head = {"id": "example", "model": "default", "text": TEXT,
            "tokens": [{"text": w, "shown": w.replace(" ", "·"), "massive": i in massive} for i, w in enumerate(words)],
            "steps": steps, "layers": layers, "heads": heads, "width": one["width"], "edits": [],
            "next": {"token": " river", "shown": "·river", "probability": 0.31, "id": 5}, "top": [
                {"shown": "·river", "probability": 0.31}, {"shown": "·bank", "probability": 0.2}], "provenance": trace.provenance}
    put("api/traces/example.json", head)
    for space in ("sphere", "raw"):
        x = trace.points.double().numpy()
        if space == "sphere":
            x = x / np.linalg.norm(x, axis=-1, keepdims=True)
        flat = x[:, [i for i in range(n) if i not in massive]].reshape(-1, x.shape[-1])
        mean = flat.mean(0)
        _, s, v = np.linalg.svd(flat - mean, full_matrices=False)
        p = ((x - mean) @ v[:3].T).astype("float32")
        shares = (s**2 / (s**2).sum())[:3].tolist()
        put(f"api/traces/example/points{'' if space == 'sphere' else '.raw'}.bin", envelope(
            {"share": sum(shares), "shares": shares, "space": space, "axes": "all"},
            {"points": (p, ["step", "token", "axis"]), "star": (p[-1, -1] * np.float32(1.4), ["axis"])}))
    said = rs.verdicts(model, trace)
    names = [one.name for one in QUESTIONS]
    put("api/traces/example/verdicts.json", {"note": "", "verdicts": [
        {"name": name, "question": str(said.question.values[i]), "answer": str(said.answer.values[i]),
         "line": str(said.line.values[i]), "deeper": str(said.deeper.values[i])} for i, name in enumerate(names)]})
    for name in ASKED:
        a = catalogue.analysis(name)
        args = [{"trace": trace, "model": model, "view": model.view, "text": TEXT}[s] for s in a.subjects]
        data = a.ask(*args)
        arrays, texts = {}, {}
        for k, v in data.data_vars.items():
            if v.values.dtype.kind in "fiub" :
                arrays[k] = (np.ascontiguousarray(v.values, "int32" if v.values.dtype.kind in "iub" else "float32"), list(v.dims))
            else:
                texts[k] = plain(v.values.astype(str))
        picture = picture_of(data, words=model.words, types=None)
        put(f"api/traces/example/analyses/{name}.bin", envelope(
            {"name": name, "question": a.question, "attrs": plain(dict(data.attrs)),
             "coords": {str(k): {"dims": list(v.dims), "values": plain(v.values)} for k, v in data.coords.items()},
             "fields": {k: {"dims": list(v.dims), **plain(dict(v.attrs))} for k, v in data.data_vars.items()},
             "texts": texts, "pictures": [{"kind": "picture"} | plain(picture)], "left_out": []}, arrays))
    spectrum = catalogue.analysis("operators").ask(model.view)
    for layer in range(layers):
        for h in range(heads):
            w = trace.weights(layer, h).float().numpy()
            put(f"api/traces/example/weights/{layer}/{h}.bin", envelope({"kind": "weights"}, {"map": (w.astype("float16"), ["query", "key"])}))
            at = spectrum.isel(layer=layer, head=h)
            put(f"api/traces/example/spectrum/{layer}/{h}.json", {
                "M": at.singular_values_M.values, "F": at.singular_values_F.values, "symmetry": float(at.symmetry),
                "positive_share": float(at.positive_share), "copying": float(at.copying)})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
