"""A language file read as the page reads it (`frontend/src/messages/tongue.ts`): its slow twin."""

import json
import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "frontend" / "src" / "messages"
GAP = re.compile(r"\{(\w+)(!?)\}")
NUMBER = r"[-−+]?(?:[\d.,]*\d[\d.,]*(?:e[-+]?\d+)? ?%?|∞|none)"
JOINT = re.compile(r"[,;:.] |[.]$| [·→×] |\n")
JOINED = {", ": "，", "; ": "；", ": ": "：", ". ": "。", ".": "。"}
VERBATIM = 0.01
"""What a letter that is meant to stay costs, beside 1 for one that nothing is known of."""
Said = tuple[str, float]
"""A text in another language, and how much of it is not."""


def letters(text: str) -> int:
    """How many letters stand in words; the names of components (L3.mlp) are names in every language."""
    return sum(map(len, re.findall("[A-Za-z]{2,}", re.sub(r"\bL\d+\.\w+", "", text))))


def pattern(template: str, greedy: str) -> re.Pattern[str]:
    """What a template says with any text in its gaps; a gap whose name begins with n holds a number."""
    parts = GAP.split(template)
    shapes = {0: re.escape, 1: lambda name: f"({NUMBER})" if name[0] == "n" else f"(.*{greedy})", 2: lambda _: ""}
    return re.compile("".join(shapes[at % 3](part) for at, part in enumerate(parts)), re.DOTALL)


class Tongue:
    """What a language says for every text that it knows."""

    def __init__(self, said: dict[str, str]) -> None:
        self.said = said
        self.templates = [
            (
                max(GAP.split(text)[::3], key=len),
                [pattern(text, greedy) for greedy in ("?", "")],
                [name for name, _ in GAP.findall(text)],
                said[text],
            )
            for text in sorted(said, key=lambda text: -len(GAP.sub("", text)))
            if GAP.search(text)
        ]
        self.best = cache(self._best)

    def tell(self, text: str) -> str:
        """A text in this language, as far as it is known."""
        return re.sub("(?<=[一-鿿]) (?=[一-鿿])", "", self.best(text)[0])

    def _best(self, text: str) -> Said:
        """The rendering that leaves least unknown: as a whole, by its template, or in pieces."""
        if text in self.said:
            return self.said[text], 0.0
        if not letters(text):
            return text, 0.0
        bare = text.strip(" ")
        if bare != text:
            said, cost = self.best(bare)
            return text.replace(bare, said), cost
        found: Said = (text, float(letters(text)))
        for one in (*self._by_template(text), *self._in_pieces(text)):
            found = min(found, one, key=lambda said: said[1])
            if found[1] < 1:
                break
        return found

    def _by_template(self, text: str):
        known = ((shapes, names, other) for literal, shapes, names, other in self.templates if literal in text)
        for shape, names, other in ((shape, names, other) for shapes, names, other in known for shape in shapes):
            match = shape.fullmatch(text)
            if not match:
                continue
            gaps, cost = dict(zip(names, match.groups(), strict=True)), 0.0
            filled = {}
            for name, stays in GAP.findall(other):
                filled[name], more = (gaps[name], VERBATIM * letters(gaps[name])) if stays else self.best(gaps[name])
                cost += more
            yield GAP.sub(lambda gap, filled=filled: filled[gap[1]], other), cost

    def _in_pieces(self, text: str):
        for joint in reversed(list(JOINT.finditer(text))):
            rest, after = self.best(text[joint.end() :])
            said, before = self.best(text[: joint.start()])
            yield said + JOINED.get(joint[0], joint[0]) + rest, before + after
            if joint.end() < len(text):  # the stop is part of the text before
                said, before = self.best(text[: joint.start() + 1])
                yield said + rest, before + after


def said_in(language: str) -> dict[str, str]:
    """What a language says for what the server says: the lines of its file that are written as JSON."""
    lines = (FOLDER / f"{language}.ts").read_text(encoding="utf-8").splitlines()
    pairs = [json.loads("{" + line.strip().rstrip(",") + "}") for line in lines if line.startswith('  "')]
    assert len({key for pair in pairs for key in pair}) == len(pairs), "a text stands in the file twice"
    return {key: other for pair in pairs for key, other in pair.items()}


LANGUAGES = sorted(path.stem for path in FOLDER.glob("*.ts") if path.stem not in ("en", "index", "tongue"))
