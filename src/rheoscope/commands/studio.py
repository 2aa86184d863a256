"""The command `rheoscope studio`: what is typed behind it."""

from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.options import Device, Dtype, File, ModelName

Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Where it listens; 0: any free one.")]
Host = Annotated[str, typer.Option(help="Another than loopback asks everyone for a token.")]
OpenPage = Annotated[bool, typer.Option("--open", help="Also open the page in a browser.")]
ModelRoots = Annotated[list[Path] | None, typer.Option(help="Models below this directory may be opened too.")]
ExportFolder = Annotated[Path | None, typer.Option(help="Write the page of one text as files here, and serve none.")]
CorpusRun = Annotated[
    Path | None,
    typer.Option("--corpus", help="Show a corpus run too: the folder of rheoscope corpus run."),
]
ExportText = Annotated[str | None, typer.Option(help="The text of the export.")]


def studio(
    model: ModelName = None,
    port: Port = None,
    host: Host = "127.0.0.1",
    opens: OpenPage = False,
    root: ModelRoots = None,
    corpus: CorpusRun = None,
    export: ExportFolder = None,
    text: ExportText = None,
    file: File = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """The page: a text as a cloud that moves, every head and analysis, heads changed while you look; on loopback.

    Examples:  rheoscope studio --open    ·    rheoscope studio --corpus run    ·    rheoscope studio --export page --text "The keys are"
    """
    from rheoscope.studio.run_studio import run_command
    from rheoscope.studio.startup import StudioOptions

    run_command(StudioOptions(model, device, dtype, root or [], corpus), host, port, opens, export, text, file)
