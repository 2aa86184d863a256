"""What a corpus run is asked to do, as one frozen value: from the command line or from a TOML file, and back from its folder."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rheoscope.corpus.batch_analyses import Question, check
from rheoscope.files import job_settings
from rheoscope.shapes import RheoscopeError

STANDARD = ("trajectory", "clusters", "readout", "head_statistics")
"""What is asked when nobody says: it costs about as much as reading the texts."""


@dataclass(frozen=True)
class Job:
    """A model, texts, and the analyses that are asked of each text.

    `length` tokens at most make a text, `least` at least; with `pack` the rows of a shard are joined by `join` and cut into texts of
    exactly `length`. `batch` tokens are computed at once, `shard` bytes of input are one unit of work, `top` examples are kept in
    every cell. `tokens` writes a row for every token too, where a field has a number for every token.
    """

    texts: tuple[str, ...]
    model: str | None = None
    analyses: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {name: {} for name in STANDARD})
    column: str = "text"
    length: int = 512
    least: int = 16
    pack: bool = False
    join: str = "\n"
    batch: int = 16_384
    shard: int = 2**21
    top: int = 8
    tokens: bool = False
    device: str | None = None
    dtype: str | None = None
    untrained: bool = False
    seed: int = 0

    @property
    def questions(self) -> list[Question]:
        """Every analysis with its settings."""
        return [Question(name, settings) for name, settings in self.analyses.items()]

    def checked(self) -> "Job":
        """The same, once nothing in it is impossible."""
        whole = {"length": 2, "least": 1, "batch": 1, "shard": 1, "top": 0, "seed": 0}
        for name, least in whole.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise RheoscopeError(f"{name} is a whole number, {least} or more, got {value!r}")
        if self.least > self.length:
            raise RheoscopeError(
                f"texts have {self.least} to {self.length} tokens, which none has; type a smaller --least"
            )
        if not self.analyses:
            raise RheoscopeError(f"no analysis was named; type --analyses {','.join(STANDARD)}")
        for question in self.questions:
            check(question)
        return self

    def settings(self) -> dict[str, Any]:
        """All that changes a number, for the fingerprint; where the texts lie is told by their content."""
        return {name: value for name, value in asdict(self).items() if name not in ("texts", "model", "device")}


def from_mapping(told: Mapping[str, Any]) -> Job:
    """A job from what a TOML file or a manifest says.

    >>> from_mapping({"texts": ["a.txt"], "analyses": {"readout": {"top": 3}}}).length
    512
    """
    known = {one.name for one in fields(Job)}
    for name in told:
        if name not in known:
            raise RheoscopeError(f"a job has no setting {name!r}; it has {', '.join(sorted(known))}")
    given = dict(told)
    texts = given.get("texts", ())
    given["texts"] = (texts,) if isinstance(texts, str) else tuple(texts)
    asked = given.get("analyses")
    if asked is not None and not isinstance(asked, Mapping):
        given["analyses"] = {name: {} for name in asked}
    return Job(**given)


def from_toml(path: Path) -> dict[str, Any]:
    """The settings of a TOML file; names of files in it are seen from where it lies."""
    told = job_settings(path)
    texts = told.get("texts", [])
    told["texts"] = [str(path.parent / one) for one in ([texts] if isinstance(texts, str) else texts)]
    return told


def with_settings(analyses: Mapping[str, Mapping[str, Any]], typed: list[str]) -> dict[str, dict[str, Any]]:
    """Analyses with settings as they are typed: agreement.draws=0, clusters.grain=half.

    >>> with_settings({"agreement": {}}, ["agreement.draws=0"])
    {'agreement': {'draws': 0}}
    """
    found = {name: dict(settings) for name, settings in analyses.items()}
    for one in typed:
        path, equals, value = one.partition("=")
        name, dot, setting = path.partition(".")
        if not equals or not dot or name not in found:
            raise RheoscopeError(
                f"got --set {one}, expected ANALYSIS.SETTING=VALUE of one of {', '.join(found)}; type --set agreement.draws=0"
            )
        found[name][setting] = _value(value)
    return found


def _value(typed: str) -> Any:
    """What was typed as TOML has it; what is none is a word."""
    try:
        return tomllib.loads(f"value = {typed}")["value"]
    except tomllib.TOMLDecodeError:
        return typed
