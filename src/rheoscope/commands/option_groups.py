"""Groups of options that several commands share: the text, the model, the files that are written, the workers.

A command takes a group as one value. `with_option_groups` turns the fields of the group into options of the command line.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rheoscope.commands.options import (
    Adapter,
    Address,
    Csv,
    Device,
    Dtype,
    Explain,
    File,
    First,
    Html,
    Json,
    ModelArgument,
    ModelName,
    Stream,
    Text,
    Threads,
    Workers,
)

if TYPE_CHECKING:
    from rheoscope.report.run_report import OutputFiles
    from rheoscope.running.runner import RunnableModel

Command = Callable[..., Any]


@dataclass(frozen=True)
class TextOptions:
    """The text that a command reads."""

    text: Text = None
    file: File = None
    first: First = None

    def resolve(self) -> str:
        """The text, from the command line, a file or standard input."""
        from rheoscope.report.input_text import resolve_text

        return resolve_text(self.text, self.file, self.first)


@dataclass(frozen=True)
class ModelOptions:
    """The model that a command opens, and where it runs."""

    model: ModelName = None
    adapter: Adapter = None
    device: Device = None
    dtype: Dtype = None
    stream: Stream = None

    def open(self) -> "RunnableModel":
        """The model, loaded with a progress bar."""
        from rheoscope.report.progress_bars import open_model

        return open_model(self.model, self.device, self.dtype, stream=self.stream, adapter=self.adapter)

    def open_for_one_text(self) -> "RunnableModel":
        """The same for a command that reads one text: of an encoder-decoder the encoder."""
        from rheoscope.running.pair_sides import one_text_model

        return one_text_model(self.open())

    def open_untrained(self, seed: int = 0) -> "RunnableModel":
        """The same architecture at initial weights."""
        from rheoscope.report.progress_bars import open_model

        return open_model(self.model, self.device, self.dtype, untrained=True, seed=seed)


@dataclass(frozen=True)
class NamedModel(ModelOptions):
    """The same for a command whose first argument is the model."""

    model: ModelArgument = None


@dataclass(frozen=True)
class OutputOptions:
    """The files that a command writes, and whether it defines its columns."""

    explain: Explain = False
    json: Json = None
    csv: Csv = None
    html: Html = None

    def files(self, input_path: Path | None = None, input_option: str = "--file") -> "OutputFiles":
        """The files. Paths that cannot be written, or that would replace the input of this option, are refused."""
        from rheoscope.report.run_report import OutputFiles

        return OutputFiles(self.json, self.csv, self.html, input_path, input_option)


@dataclass(frozen=True)
class WorkerOptions:
    """The Ray workers of a long run."""

    workers: Workers = None
    address: Address = None
    threads: Threads = None


def with_option_groups(command: Command) -> Command:
    """The command with an option for every field of its groups, in the place of the group.

    >>> def show(name: str, output: OutputOptions): return name, output.explain
    >>> list(inspect.signature(with_option_groups(show)).parameters)
    ['name', 'explain', 'json', 'csv', 'html']
    >>> with_option_groups(show)(name="a", explain=True)
    ('a', True)
    """
    parameters = inspect.signature(command).parameters.values()

    def run(**values: Any) -> Any:
        return command(**{parameter.name: _argument(parameter, values) for parameter in parameters})

    flat_parameters = [flat for parameter in parameters for flat in _flatten(parameter)]
    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__signature__ = inspect.Signature(flat_parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in flat_parameters}
    return run


def _argument(parameter: inspect.Parameter, values: dict[str, Any]) -> Any:
    """The value of a parameter of the command: a group made of its fields, or the option itself."""
    group = parameter.annotation
    if not dataclasses.is_dataclass(group):
        return values.get(parameter.name, parameter.default)
    names = {field.name for field in dataclasses.fields(group)}
    return group(**{name: value for name, value in values.items() if name in names})  # type: ignore[operator]


def _flatten(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """The options of a parameter: the fields of a group, or the parameter itself."""
    if not dataclasses.is_dataclass(parameter.annotation):
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        return
    for field in dataclasses.fields(parameter.annotation):
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, annotation=field.type, default=default)
