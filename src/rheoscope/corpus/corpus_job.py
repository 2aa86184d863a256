"""The settings of a corpus run as one frozen value, from the command line, a TOML file or the folder of a run."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.corpus.batch_analyses import Request, check_request
from rheoscope.files import read_job_file
from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
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
    """A model, texts, and the analyses that run on each text.

    **Settings** A text has at least `least` and at most `length` tokens. With `pack`, the rows of a shard are
    joined by `join` and cut into texts of exactly `length` tokens. `batch` tokens are computed at once, `shard`
    bytes of input are one unit of work, and `top` examples are kept per cell. `tokens` also writes one row per
    token, for fields that have a value per token.
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
        """The job itself, after checking its settings."""
        minimums = {"length": 2, "least": 1, "batch": 1, "shard": 1, "top": 0, "seed": 0}
        for name, minimum in minimums.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                raise RheoscopeError(
                    Message(
                        "{setting} must be an integer of at least {minimum}, got {value!r}",
                        setting=name,
                        minimum=minimum,
                        value=value,
                    ),
                    use(**{name: getattr(Job, name)}),
                )
        if self.least > self.length:
            raise RheoscopeError(
                Message("least ({least}) is larger than length ({length})", least=self.least, length=self.length),
                use(least=self.length),
            )
        if not self.analyses:
            raise RheoscopeError(
                Message("a corpus run needs at least one analysis, got none"), use(analyses=list(DEFAULT_ANALYSES))
            )
        for request in self.requests:
            check_request(request)
        return self

    def fingerprint_settings(self) -> dict[str, Any]:
        """All settings that change a number.

        The location of the texts is replaced by their content in the fingerprint.
        """
        return {name: value for name, value in asdict(self).items() if name not in ("texts", "model", "device")}


def job_from_mapping(settings: Mapping[str, Any]) -> Job:
    """A job from the settings of a TOML file or a manifest.

    >>> job_from_mapping({"texts": ["a.txt"], "analyses": {"readout": {"top": 3}}}).length
    512
    """
    field_names = {job_field.name for job_field in fields(Job)}
    for name in settings:
        if name not in field_names:
            raise RheoscopeError(
                Message(
                    "a corpus job has no setting {setting!r}; its settings are {settings}",
                    setting=name,
                    settings=", ".join(sorted(field_names)),
                )
            )
    values = dict(settings)
    texts = values.get("texts", ())
    values["texts"] = (texts,) if isinstance(texts, str) else tuple(texts)
    analyses = values.get("analyses")
    if analyses is not None and not isinstance(analyses, Mapping):
        values["analyses"] = {name: {} for name in analyses}
    return Job(**values)


def settings_from_toml(path: Path) -> dict[str, Any]:
    """The settings of a TOML file. File names in it are relative to its folder."""
    settings = read_job_file(path)
    texts = settings.get("texts", [])
    settings["texts"] = [str(path.parent / file_name) for file_name in ([texts] if isinstance(texts, str) else texts)]
    return settings


def apply_settings(analyses: Mapping[str, Mapping[str, Any]], assignments: list[str]) -> dict[str, dict[str, Any]]:
    """Analyses with typed settings such as agreement.draws=0 or clusters.grain=half.

    >>> apply_settings({"agreement": {}}, ["agreement.draws=0"])
    {'agreement': {'draws': 0}}
    """
    result = {name: dict(settings) for name, settings in analyses.items()}
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        name, dot, setting = path.partition(".")
        if not equals or not dot or name not in result:
            raise RheoscopeError(
                Message(
                    "--set must have the form ANALYSIS.SETTING=VALUE with an analysis of this run ({analyses}), got {text}",
                    analyses=", ".join(result),
                    text=assignment,
                ),
                Advice("", f"--set {next(iter(result), 'ANALYSIS')}.draws=0"),
            )
        result[name][setting] = _parse_value(value)
    return result


def _parse_value(text: str) -> Any:
    """A TOML value, or the text itself if it is not valid TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
