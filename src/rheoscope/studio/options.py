"""What is typed behind `rheoscope studio`."""

from pathlib import Path
from typing import Annotated

import typer

Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Where it listens; 0: any free one.")]
Host = Annotated[str, typer.Option(help="Another than loopback asks everyone for a token.")]
Opens = Annotated[bool, typer.Option("--open", help="Also open the page in a browser.")]
Roots = Annotated[list[Path] | None, typer.Option(help="Models below this directory may be opened too.")]
Export = Annotated[Path | None, typer.Option(help="Write the page of one text as files here, and serve none.")]
ExportText = Annotated[str | None, typer.Option(help="The text of the export.")]
