"""An analysis as a value: what it asks, what it needs, and every field that it answers with.

As a mechanism is a row of `attention/zoo.py`, an analysis is a row of `catalogue.py`. It is declared at the end of its own
file, beside the function that computes it, and all else follows from the declaration: the public name, the command, the
report, the picture, the rows of a corpus, the battery of laws, the list in the documentation.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

if TYPE_CHECKING:
    import xarray

Needs = Literal["view", "trace", "model"]
"""view: weights alone · trace: one text · model: the model runs again."""
SUBJECTS = ("view", "trace", "model", "text", "texts")
"""What an analysis can be about: the names of its first parameters. Every other parameter is a setting with a default."""


@dataclass(frozen=True)
class Field:
    """One array of an answer.

    `dims` name its axes; `definition` is one sentence; `unit` is empty for a pure number; `null` names the field of the same
    answer that holds what chance would give, `null_sd` the one that holds how far that spreads.

    `basis`: it depends on the coordinates that E is written in. `gauge`: it depends on the coordinates of a head, which the
    model itself cannot see, and stands beside a field that does not. `names`: its whole numbers name things (ids, clusters), so that
    a mean of them says nothing.
    """

    dims: tuple[str, ...]
    definition: str
    unit: str = ""
    null: str = ""
    null_sd: str = ""
    basis: bool = False
    gauge: bool = False
    names: bool = False

    def attributes(self) -> dict[str, str]:
        """What the array carries with it, as far as there is something to say."""
        told = {"definition": self.definition, "unit": self.unit, "null": self.null, "null_sd": self.null_sd}
        marks = {"basis": "depends on the basis of E"} if self.basis else {}
        marks |= {"gauge": "depends on the coordinates of the head"} if self.gauge else {}
        return {name: text for name, text in (told | marks).items() if text}


def with_interval(name: str, field: Field) -> dict[str, Field]:
    """A field, and both ends of its bootstrap interval beside it.

    >>> list(with_interval("cost", Field(("change",), "what it costs", unit="nats")))
    ['cost', 'cost_low', 'cost_high']
    """
    said = {"low": "lower", "high": "upper"}
    ends = {
        f"{name}_{end}": replace(
            field, definition=f"{word} end of the 95 % bootstrap interval of {name}", null="", null_sd=""
        )
        for end, word in said.items()
    }
    return {name: field} | ends


@dataclass(frozen=True, eq=False)
class Analysis:
    """A question that can be asked of a model or of a text, and the shape of its answer.

    `name` is its public name, `question` one line without maths, `ask` the function that answers with an `xarray.Dataset`,
    `needs` what it must be given, `fields` every array it may answer with. A `dear` one costs many forward passes, so that the
    report of a text leaves it to those who ask for it by name.

    `batch` asks many texts at once, `batch(traces, **settings)`: some or all of the fields as tensors (text, *dims) on the device
    of the traces. Along `token` they are as long as the longest text, NaN (−1 of whole numbers) where a text has no such token or
    the analysis drops it.

    **Laws** `ask` can be called with its subject alone: every setting has a default. Each field of an answer is declared, and
    has the declared axes. What `batch` gives for a text is what `ask` answers to it alone.

    >>> import torch
    >>> length = Analysis("length", "How long is it?", lambda trace: None, "trace", {"n": Field((), "number of tokens")})
    >>> length.answer({"n": torch.tensor(3)}, {}, {"seed": 0}).n.attrs["definition"]
    'number of tokens'
    """

    name: str
    question: str
    ask: "Callable[..., xarray.Dataset]"
    needs: Needs
    fields: Mapping[str, Field]
    dear: bool = False
    batch: "Callable[..., dict[str, Tensor]] | None" = None

    def answer(
        self, values: Mapping[str, Any], coords: Mapping[str, Any], attributes: Mapping[str, Any]
    ) -> "xarray.Dataset":
        """Named arrays as a Dataset: axes and definitions as declared, settings and provenance in its attributes."""
        import xarray as xr

        data = {
            name: xr.Variable(self.fields[name].dims, _plain(x), self.fields[name].attributes())
            for name, x in values.items()
        }
        return xr.Dataset(data, coords, {"analysis": self.name, "question": self.question} | dict(attributes))

    @property
    def subjects(self) -> tuple[str, ...]:
        """What it must be given, in order: ("trace",), ("model", "trace"), …"""
        return tuple(name for name in inspect.signature(self.ask).parameters if name in SUBJECTS)

    @property
    def reads_text(self) -> bool:
        """Whether it is about a text; others are about weights, or bring their own sentences."""
        return bool({"trace", "text", "texts"} & set(self.subjects))

    @property
    def settings(self) -> dict[str, inspect.Parameter]:
        """What can be set, by name."""
        parameters = inspect.signature(self.ask).parameters
        return {name: one for name, one in parameters.items() if name not in SUBJECTS and name != "progress"}

    @property
    def tells_progress(self) -> bool:
        """Whether it says how much is done."""
        return "progress" in inspect.signature(self.ask).parameters


def declared(ask: Callable[..., Any]) -> Analysis | None:
    """The declaration that stands in the file of a public function; None for a function that is no analysis's.

    >>> import rheoscope as rs
    >>> homeless = eval("lambda trace: None", {})
    >>> declared(rs.energy).name, declared(len), declared(homeless)
    ('energy', None, None)
    """
    here: Any = ask
    while here is not None:  # as the package gives it, it looks at its arguments first
        home = sys.modules.get(here.__module__ or "") if inspect.isfunction(here) else None
        beside = () if home is None else vars(home).values()
        for one in beside:
            if isinstance(one, Analysis) and one.ask is here:
                return one
        here = getattr(here, "__wrapped__", None)
    return None


def _plain(x: Any) -> Any:
    return x.detach().cpu().numpy() if isinstance(x, Tensor) else x
