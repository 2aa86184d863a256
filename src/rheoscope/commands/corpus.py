"""`rheoscope corpus run|resume|status|query|report`: the same analyses over a whole corpus."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from rheoscope.commands.command_group import CommandGroup
from rheoscope.commands.completion import analysis_names, complete_from, complete_list_from, device_names
from rheoscope.commands.option_groups import WorkerOptions, with_option_groups
from rheoscope.commands.options import Dtype, ModelName, split_names
from rheoscope.commands.variadic_options import VariadicCommand

corpus = typer.Typer(cls=CommandGroup, help="Run analyses over a whole corpus: run, resume, query, report.")

Folder = Annotated[Path, typer.Argument(help="The folder of a run.")]
AnalysisNames = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…",
        help="Names of analyses (default: a cheap set). rheoscope analyses lists them.",
        autocompletion=complete_list_from(analysis_names),
    ),
]
Settings = Annotated[list[str] | None, typer.Option("--set", help="ANALYSIS.SETTING=VALUE, such as agreement.draws=0.")]
TextFiles = Annotated[
    list[str] | None,
    typer.Option(help="Files or directories of files (.txt and .jsonl, also as .gz or .zst, and .parquet)."),
]
JobFile = Annotated[
    Path | None, typer.Option("--job", help="Read these settings from a TOML file. Typed options override it.")
]
Length = Annotated[
    int | None, typer.Option(min=2, help="Maximum tokens per text. Longer texts are truncated (default: 512).")
]
MinTokens = Annotated[int | None, typer.Option(min=1, help="Skip texts with fewer tokens (default: 16).")]
Pack = Annotated[bool | None, typer.Option("--pack", help="Concatenate rows and cut them into texts of --length.")]
Column = Annotated[str | None, typer.Option(help="The column that holds the text (default: text).")]
Batch = Annotated[int | None, typer.Option(min=1, help="Tokens per batch (default: 16384).")]
ShardSize = Annotated[int | None, typer.Option("--shard", min=1, help="Input bytes per shard (default: 2 MiB).")]
Top = Annotated[int | None, typer.Option(min=0, help="Examples to keep per head (default: 8).")]
TokenRows = Annotated[bool | None, typer.Option("--tokens", help="Also write one row per token.")]
Untrained = Annotated[bool | None, typer.Option("--untrained", help="Use the same architecture at initial weights.")]
DeviceName = Annotated[
    str | None,
    typer.Option(
        help="cpu, cuda, or auto for all GPUs (default: cuda if available).",
        autocompletion=complete_from(lambda: [*device_names(), "auto"]),
    ),
]


@dataclass(frozen=True)
class JobOptions:
    """The settings of a job. Those that are None come from the job file, or are the defaults."""

    texts: TextFiles = None
    model: ModelName = None
    analyses: AnalysisNames = None
    length: Length = None
    least: MinTokens = None
    pack: Pack = None
    column: Column = None
    batch: Batch = None
    shard: ShardSize = None
    top: Top = None
    tokens: TokenRows = None
    untrained: Untrained = None
    device: DeviceName = None
    dtype: Dtype = None

    def to_mapping(self) -> dict[str, Any]:
        """The settings that were typed."""
        names = None if self.analyses is None else split_names(self.analyses)
        return {name: value for name, value in (asdict(self) | {"analyses": names}).items() if value is not None}


@corpus.command("run", cls=VariadicCommand)
@with_option_groups
def run_command(
    out: Annotated[Path, typer.Option(help="The folder of the run. An existing run is resumed.")],
    settings: Settings = None,
    job: JobFile = None,
    *,
    options: JobOptions,
    cluster: WorkerOptions,
) -> None:
    """Run analyses on every text of a corpus. The same command resumes a run that was stopped or killed.

    Examples:  rheoscope corpus run --texts wiki.jsonl.gz --out run    ·    rheoscope corpus run --texts data/ --model gpt2 --pack
    --length 1024 --analyses head_types,agreement --set agreement.draws=0 --out run    ·    rheoscope corpus run --job job.toml --out run
    """
    from rheoscope.corpus.corpus_job import apply_settings, job_from_mapping, settings_from_toml
    from rheoscope.corpus.corpus_report import run_corpus

    job_settings = ({} if job is None else settings_from_toml(job)) | options.to_mapping()
    base_job = job_from_mapping(job_settings)
    full_job = job_from_mapping(job_settings | {"analyses": apply_settings(base_job.analyses, settings or [])})
    run_corpus(full_job, out, **asdict(cluster))


@corpus.command("resume")
@with_option_groups
def resume_command(folder: Folder, *, cluster: WorkerOptions) -> None:
    """Resume a run that was stopped or killed, and repair a damaged one. Intact shards are not computed again.

    Examples:  rheoscope corpus resume run    ·    rheoscope corpus resume run --workers 4
    """
    from rheoscope.corpus.corpus_report import run_corpus
    from rheoscope.corpus.manifest import recover_manifest

    run_corpus(recover_manifest(folder).job, folder, **asdict(cluster))


@corpus.command("status")
def status_command(
    folder: Folder,
    deep: Annotated[bool, typer.Option("--deep", help="Compare every file with its digest first.")] = False,
) -> None:
    """Show the progress of a run: shards, texts, tokens and rejected texts. Damaged files are named.

    Examples:  rheoscope corpus status run    ·    rheoscope corpus status run --deep
    """
    from rheoscope.corpus.corpus_report import show_status

    show_status(folder, deep)


@corpus.command("query")
def query_command(
    folder: Folder,
    sql: Annotated[
        str, typer.Argument(help="A query in SQL. Every analysis is a view (default: list the views).")
    ] = "",
    csv: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Query a run in SQL (DuckDB). The views are the analyses, texts, rejects and summary.

    Examples:  rheoscope corpus query run    ·    rheoscope corpus query run "SELECT layer, avg(agreement) FROM agreement GROUP BY ALL"
    """
    from rheoscope.corpus.corpus_report import show_query

    show_query(folder, sql, csv)


@corpus.command("report")
def report_command(
    folder: Folder,
    compare: Annotated[
        Path | None, typer.Option(help="Another run of the same model and analyses, to measure the drift between them.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the page to this file (default: report.html in the folder).")
    ] = None,
) -> None:
    """Write a page about a run: distributions with intervals, curves over layers, top examples and drift.

    Examples:  rheoscope corpus report run    ·    rheoscope corpus report wiki --compare news --html drift.html
    """
    from rheoscope.corpus.corpus_page import save_page
    from rheoscope.messages.catalogue import render

    print(render(save_page(folder, compare, html)))
