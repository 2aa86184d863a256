"""The 96 passages over which claims about a model are averaged."""

import json
import re
from collections import Counter
from pathlib import Path

import rheoscope.report
from tests.pictures.cases import model

FILE = Path(rheoscope.report.__file__).with_name("passages.jsonl")
PASSAGES = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
KINDS = {"prose": 26, "dialogue": 14, "exposition": 20, "list": 10, "code": 12, "question": 10, "verse": 4}
CODE = {"python": 5, "javascript": 2, "c": 1, "sql": 1, "html": 1, "shell": 1, "json": 1}
OTHERS = {("prose", "de"): 1, ("exposition", "de"): 1, ("prose", "fr"): 1, ("exposition", "zh"): 1}
N_SHARED = 8


def test_kinds_and_languages() -> None:
    assert all(set(passage) == {"id", "kind", "language", "text"} for passage in PASSAGES)
    pairs = Counter((passage["kind"], passage["language"]) for passage in PASSAGES)
    english = {(kind, "en"): KINDS[kind] for kind in KINDS if kind != "code"}
    english["prose", "en"], english["exposition", "en"] = 24, 18
    assert pairs == english | {("code", language): number for language, number in CODE.items()} | OTHERS
    assert Counter(passage["kind"] for passage in PASSAGES) == KINDS
    assert len(PASSAGES) == 96


def test_ids_and_texts_are_unique() -> None:
    for field in ("id", "text"):
        assert len({passage[field] for passage in PASSAGES}) == len(PASSAGES)
    assert all(passage["text"] == passage["text"].strip() for passage in PASSAGES)


def test_every_text_has_60_to_120_tokens() -> None:
    lengths = {passage["id"]: len(model().ids(passage["text"])) for passage in PASSAGES}
    assert {name: length for name, length in lengths.items() if not 60 <= length <= 120} == {}


def test_no_two_passages_share_eight_words() -> None:
    owners: dict[tuple[str, ...], str] = {}
    for passage in PASSAGES:
        words = re.findall(r"\w+", passage["text"].lower())
        for start in range(len(words) - N_SHARED + 1):
            sequence = tuple(words[start : start + N_SHARED])
            assert owners.setdefault(sequence, passage["id"]) == passage["id"], sequence


def test_python_and_json_passages_are_valid() -> None:
    for passage in PASSAGES:
        if passage["language"] == "python":
            compile(passage["text"], passage["id"], "exec")
        elif passage["language"] == "json":
            json.loads(passage["text"])
