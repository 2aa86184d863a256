"""What a corpus run is asked to do, as one frozen value: from the command line or from a TOML file, and back from its folder."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.corpus.batch_analyses import Request, check_request
from rheoscope.files import read_job_file
from rheoscope.shapes import RheoscopeError

DEFAULT_ANALYSES = tuple(
    sorted(
        (name for name in ANALYSIS_MODULES if analysis_by_name(name).corpus is not None),
        key=lambda name: analysis_by_name(name).corpus or 0,
    )
)
"""The default analyses of a corpus run, which together cost about as much as reading the texts."""


@dataclass(frozen=True)
class Job:
    """A model, texts, and the analyses that are asked of each text.

    `length` tokens at most make a text, `least` at least; with `pack` the rows of a shard are joined by `join` and cut into texts of
    exactly `length`. `batch` tokens are computed at once, `shard` bytes of input are one unit of work, `top` examples are kept in
    every cell. `tokens` writes a row for every token too, where a field has a number for every token.
    """

    texts: tuple[str, ...]
    model: str | None = None
    analyses: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {name: {} for name in DEFAULT_ANALYSES})
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
    def requests(self) -> list[Request]:
        """Every analysis with its settings."""
        return [Request(name, settings) for name, settings in self.analyses.items()]

    def validate(self) -> "Job":
        """The same, once nothing in it is impossible."""
        minimums = {"length": 2, "least": 1, "batch": 1, "shard": 1, "top": 0, "seed": 0}
        for name, minimum in minimums.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                raise RheoscopeError(f"{name} is a whole number, {minimum} or more, got {value!r}")
        if self.least > self.length:
            raise RheoscopeError(
                f"texts have {self.least} to {self.length} tokens, which none has; type a smaller --least"
            )
        if not self.analyses:
            raise RheoscopeError(f"no analysis was named; type --analyses {','.join(DEFAULT_ANALYSES)}")
        for request in self.requests:
            check_request(request)
        return self

    def fingerprint_settings(self) -> dict[str, Any]:
        """All that changes a number, for the fingerprint; where the texts lie is told by their content."""
        return {name: value for name, value in asdict(self).items() if name not in ("texts", "model", "device")}


def job_from_mapping(settings: Mapping[str, Any]) -> Job:
    """A job from what a TOML file or a manifest says.

    >>> job_from_mapping({"texts": ["a.txt"], "analyses": {"readout": {"top": 3}}}).length
    512
    """
    field_names = {job_field.name for job_field in fields(Job)}
    for name in settings:
        if name not in field_names:
            raise RheoscopeError(f"a job has no setting {name!r}; it has {', '.join(sorted(field_names))}")
    values = dict(settings)
    texts = values.get("texts", ())
    values["texts"] = (texts,) if isinstance(texts, str) else tuple(texts)
    analyses = values.get("analyses")
    if analyses is not None and not isinstance(analyses, Mapping):
        values["analyses"] = {name: {} for name in analyses}
    return Job(**values)


def settings_from_toml(path: Path) -> dict[str, Any]:
    """The settings of a TOML file; names of files in it are seen from where it lies."""
    settings = read_job_file(path)
    texts = settings.get("texts", [])
    settings["texts"] = [str(path.parent / file_name) for file_name in ([texts] if isinstance(texts, str) else texts)]
    return settings


def apply_settings(analyses: Mapping[str, Mapping[str, Any]], assignments: list[str]) -> dict[str, dict[str, Any]]:
    """Analyses with settings as they are typed: agreement.draws=0, clusters.grain=half.

    >>> apply_settings({"agreement": {}}, ["agreement.draws=0"])
    {'agreement': {'draws': 0}}
    """
    result = {name: dict(settings) for name, settings in analyses.items()}
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        name, dot, setting = path.partition(".")
        if not equals or not dot or name not in result:
            raise RheoscopeError(
                f"got --set {assignment}, expected ANALYSIS.SETTING=VALUE of one of {', '.join(result)}; type --set agreement.draws=0"
            )
        result[name][setting] = _parse_value(value)
    return result


def _parse_value(text: str) -> Any:
    """What was typed as TOML has it; what is none is a word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
