"""`rheoscope studio`: the interactive page, served on this machine or exported as files."""

from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.options import Device, Dtype, File, ModelName

Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the page. 0: any free port.")]
Host = Annotated[str, typer.Option(help="Address to bind to. Any other than loopback requires a token.")]
OpenPage = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]
ModelRoots = Annotated[list[Path] | None, typer.Option(help="Also allow the models below this directory.")]
ExportPath = Annotated[
    Path | None,
    typer.Option(help="Write the page of one text into this folder, or into one file NAME.html, and do not serve it."),
]
CorpusRun = Annotated[
    Path | None, typer.Option("--corpus", help="Also show a corpus run: the folder of rheoscope corpus run.")
]
RunsFolder = Annotated[
    Path | None, typer.Option("--runs", help="Also show training runs and races: a run, or a folder of runs.")
]
FeaturesName = Annotated[
    str | None,
    typer.Option(
        "--features", metavar="DIR", help="Show scores as sums over the features of this dictionary (or default)."
    ),
]
ExportText = Annotated[str | None, typer.Option(help="The text of the export.")]


def studio(
    model: ModelName = None,
    port: Port = None,
    host: Host = "127.0.0.1",
    open_page: OpenPage = False,
    root: ModelRoots = None,
    corpus: CorpusRun = None,
    runs: RunsFolder = None,
    features: FeaturesName = None,
    export: ExportPath = None,
    text: ExportText = None,
    file: File = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Open the interactive page on this machine.

    The page shows a text as a moving cloud of tokens, every head and every analysis, and lets you edit heads live.

    Examples:  rheoscope studio --open    ·    rheoscope studio --corpus run    ·    rheoscope studio --export page --text "The keys are"
    """
    from rheoscope.studio.run_studio import run_command
    from rheoscope.studio.startup import StudioOptions

    run_command(
        StudioOptions(model, device, dtype, root or [], corpus, runs, features),
        host,
        port,
        open_page,
        export,
        text,
        file,
    )
