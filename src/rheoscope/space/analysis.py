"""The declaration of an analysis: its question, its inputs, its settings and every field of its result.

Every analysis is a row of `catalogue.py`, as every mechanism is a row of `attention/zoo.py`. It is declared at the end of
its own file, after the function that computes it. Everything else follows from the declaration: the public name, the
command, the report, the plot, the corpus table, the tests of its laws, the list in the documentation.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.report_run import ReportRun
from rheoscope.space.settings import check_setting, has_unbounded_number

if TYPE_CHECKING:
    import xarray

    from rheoscope.space.results import Results

Needs = Literal["view", "trace", "model"]
"""view: weights only · trace: one text · model: the model runs again."""
SUBJECTS = ("view", "trace", "model", "text", "texts")
"""The names of the first parameters of an analysis. Every other parameter is a setting with a default."""


@dataclass(frozen=True)
class Field:
    """One array of a result.

    `dims` are its axes, `definition` is one sentence, `unit` is empty for a pure number. `null` names the field of the same
    result with the mean of its null distribution, `null_sd` the one with its standard deviation.

    `basis_dependent`: it depends on the basis of E. `gauge_dependent`: it depends on the coordinates inside a head, which the
    model itself cannot see; a field without this dependence accompanies it. `is_categorical`: its integers are labels (ids,
    clusters), so their mean is meaningless.
    """

    dims: tuple[str, ...]
    definition: str
    unit: str = ""
    null: str = ""
    null_sd: str = ""
    basis_dependent: bool = False
    gauge_dependent: bool = False
    is_categorical: bool = False

    def attributes(self) -> dict[str, str]:
        """The attributes of the array, without empty ones."""
        texts = {"definition": self.definition, "unit": self.unit, "null": self.null, "null_sd": self.null_sd}
        warnings = {"basis": "depends on the basis of E"} if self.basis_dependent else {}
        warnings |= {"gauge": "depends on the coordinates of the head"} if self.gauge_dependent else {}
        kind = {"categorical": "its integers are labels"} if self.is_categorical else {}
        return {name: text for name, text in (texts | warnings | kind).items() if text}


def with_interval(name: str, field: Field) -> dict[str, Field]:
    """A field and both ends of its confidence interval.

    >>> list(with_interval("cost", Field(("change",), "loss after the edit minus before", unit="nats")))
    ['cost', 'cost_low', 'cost_high']
    """
    definitions = {
        "low": Message("lower end of the 95 % interval of {field}", field=name),
        "high": Message("upper end of the 95 % interval of {field}", field=name),
    }
    ends = {
        f"{name}_{end}": replace(field, definition=definition, null="", null_sd="")
        for end, definition in definitions.items()
    }
    return {name: field} | ends


def _refuse_unknown_settings(
    name: str, batch: "Callable[..., dict[str, Tensor]]"
) -> "Callable[..., dict[str, Tensor]]":
    """The same batch kernel, with an error of one line for a setting that it does not have."""
    names = [parameter for parameter in inspect.signature(batch).parameters if parameter not in ("traces", "progress")]

    @wraps(batch)
    def checked_batch(traces: Any, *values: Any, **settings: Any) -> "dict[str, Tensor]":
        unknown = [setting for setting in settings if setting not in (*names, "progress")]
        if unknown:
            raise RheoscopeError(
                Message(
                    "{name} of many texts has no setting {received!r}; expected one of {names}",
                    name=name,
                    received=unknown[0],
                    names=", ".join(names) or Message("none"),
                ),
                Advice(f"rs.over_texts(rs.{name}, traces, {unknown[0]}={settings[unknown[0]]!r})"),
            )
        return batch(traces, *values, **settings)

    return checked_batch


ReportSettings = Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]
"""Settings by name, or a function that derives them from the `Results` so far."""


@dataclass(frozen=True, eq=False)
class Analysis:
    """A question about a model or a text, the function that answers it, and the fields of its result.

    `name` is its public name, `question` one line without maths, `ask` the function that returns an `xarray.Dataset`, `needs`
    its input, `fields` every array that it may return. An `expensive` analysis costs many forward passes, so the report of a
    text runs it only if it is requested by name.

    **In a report** it waits for the analyses in `depends_on` and runs with the settings of `report`, on a long text also with
    those of `long_text`. One with `last` runs after all others, in the order of these numbers. `report_runs` are its runs in the
    other reports. `shown_with` names the analyses whose results its `words.py` also shows, where they exist. `see_also` names
    the analyses that its errors recommend or that its line of the story reads.

    **Elsewhere** `corpus` is its place in the default set of a corpus run. `atlas` are the fields that the atlas stores, curves over
    layers and numbers of heads, and `atlas_settings` the settings with which it computes them. The plot of all heads in the atlas has an
    axis for each of the two `atlas_axis`. `colours_cloud`: the cloud of a
    notebook is coloured by its fields. `classifies_heads`: its field `type` colours maps of heads.

    `batch(traces, **settings)` analyses many texts at once: some or all of the fields as tensors (text, *dims) on the device of
    the traces. Along `token` they are as long as the longest text, with NaN (−1 for integers) at padding and at tokens that the
    analysis leaves out.

    **Laws** Every setting of `ask` has a default. Every field of a result is declared and has the declared axes. For each text,
    `batch` equals `ask`.

    >>> import torch
    >>> length = Analysis("length", "How long is it?", lambda trace: None, "trace", {"n": Field((), "number of tokens")})
    >>> length.label({"n": torch.tensor(3)}, {}, {"seed": 0}).n.attrs["definition"]
    'number of tokens'
    """

    name: str
    question: str
    ask: "Callable[..., xarray.Dataset]"
    needs: Needs
    fields: Mapping[str, Field]
    expensive: bool = False
    depends_on: tuple[str, ...] = ()
    report: ReportSettings = field(default_factory=dict)
    long_text: ReportSettings = field(default_factory=dict)
    batch: "Callable[..., dict[str, Tensor]] | None" = None
    last: int = 0
    report_runs: tuple[ReportRun, ...] = ()
    shown_with: tuple[str, ...] = ()
    see_also: tuple[str, ...] = ()
    corpus: int | None = None
    atlas: tuple[str, ...] = ()
    atlas_settings: Mapping[str, Any] = field(default_factory=dict)
    atlas_axis: str = ""
    colours_cloud: bool = False
    classifies_heads: bool = False

    def __post_init__(self) -> None:
        if self.batch is not None:
            object.__setattr__(self, "batch", _refuse_unknown_settings(self.name, self.batch))
        for name, parameter in self.settings.items():
            if parameter.annotation is parameter.empty:
                raise TypeError(
                    f"setting {name!r} of analysis {self.name!r} has no type; write {name}: bool, for example"
                )
            if has_unbounded_number(parameter.annotation):
                raise TypeError(
                    f"setting {name!r} of analysis {self.name!r} has no bounds; write {name}: Annotated[int, Bounds(0, 100)]"
                )

    def label(
        self, values: Mapping[str, Any], coords: Mapping[str, Any], attributes: Mapping[str, Any]
    ) -> "xarray.Dataset":
        """Named arrays as a Dataset, with the declared axes and definitions, and settings and provenance as attributes."""
        import xarray as xr

        data = {
            name: xr.Variable(self.fields[name].dims, _to_numpy(value), self.fields[name].attributes())
            for name, value in values.items()
        }
        return xr.Dataset(data, coords, {"analysis": self.name, "question": self.question} | dict(attributes))

    @property
    def subjects(self) -> tuple[str, ...]:
        """Its inputs in order: ("trace",), ("model", "trace"), …"""
        return tuple(name for name in inspect.signature(self.ask).parameters if name in SUBJECTS)

    @property
    def reads_text(self) -> bool:
        """Whether it analyses a text. Others analyse weights, or have their own sentences."""
        return bool({"trace", "text", "texts"} & set(self.subjects))

    @property
    def settings(self) -> dict[str, inspect.Parameter]:
        """Its settings by name."""
        parameters = inspect.signature(self.ask).parameters
        return {
            name: parameter for name, parameter in parameters.items() if name not in SUBJECTS and name != "progress"
        }

    def report_settings(self, results: "Results", is_long: bool) -> dict[str, Any]:
        """The settings with which a report runs it on this text, where they differ from the defaults."""
        declared = [self.report, self.long_text] if is_long else [self.report]
        settings: dict[str, Any] = {}
        for part in declared:
            settings |= part(results) if callable(part) else part
        return settings

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raise where a setting lies outside the bounds of its declaration."""
        for name, value in settings.items():
            if name in self.settings:
                check_setting(name, self.settings[name].annotation, value)

    @property
    def reports_progress(self) -> bool:
        """Whether it reports progress."""
        return "progress" in inspect.signature(self.ask).parameters


def analysis_of(function: Callable[..., Any]) -> Analysis | None:
    """The declaration of a public function; None if the function is not an analysis.

    >>> import rheoscope as rs
    >>> without_module = eval("lambda trace: None", {})
    >>> analysis_of(rs.energy).name, analysis_of(len), analysis_of(without_module)
    ('energy', None, None)
    """
    candidate: Any = function
    while candidate is not None:  # the public function wraps the original with argument checks
        module = sys.modules.get(candidate.__module__ or "") if inspect.isfunction(candidate) else None
        module_values = () if module is None else vars(module).values()
        for value in module_values:
            if isinstance(value, Analysis) and value.ask is candidate:
                return value
        candidate = getattr(candidate, "__wrapped__", None)
    return None


def _to_numpy(x: Any) -> Any:
    return x.detach().cpu().numpy() if isinstance(x, Tensor) else x
