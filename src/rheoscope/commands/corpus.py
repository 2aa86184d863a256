"""The commands `rheoscope corpus run|resume|status|query|report`: what is typed behind them."""

from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.options import Address, Dtype, ModelName, Threads, Workers
from rheoscope.commands.variadic_options import VariadicCommand

corpus = typer.Typer(
    no_args_is_help=True, help="A whole corpus: the same analyses over millions of tokens, to Parquet."
)

Folder = Annotated[Path, typer.Argument(help="The folder of a run.")]
AnalysisNames = Annotated[
    str | None, typer.Option(metavar="A,B,…", help="The analyses (default: a cheap set); see rheoscope analyses.")
]
Settings = Annotated[list[str] | None, typer.Option("--set", help="ANALYSIS.SETTING=VALUE, as agreement.draws=0.")]
TextFiles = Annotated[
    list[str] | None, typer.Option(help="Files (.txt, .jsonl, both .gz or .zst, .parquet) or directories of them.")
]
JobFile = Annotated[
    Path | None, typer.Option("--job", help="Read these settings from a TOML file; what is typed goes before.")
]
Length = Annotated[
    int | None, typer.Option(min=2, help="Tokens of a text at most: longer ones are cut (default: 512).")
]
MinTokens = Annotated[int | None, typer.Option(min=1, help="Texts of fewer tokens are left out (default: 16).")]
Pack = Annotated[bool | None, typer.Option("--pack", help="Join rows, and cut them into texts of exactly that length.")]
Column = Annotated[str | None, typer.Option(help="The column that holds the text (default: text).")]
Batch = Annotated[int | None, typer.Option(min=1, help="Tokens computed at once (default: 16384).")]
ShardSize = Annotated[
    int | None, typer.Option("--shard", min=1, help="Bytes of input in a unit of work (default: 2 MiB).")
]
Top = Annotated[int | None, typer.Option(min=0, help="Examples kept of every head (default: 8).")]
TokenRows = Annotated[bool | None, typer.Option("--tokens", help="Write a row for every token too.")]
Untrained = Annotated[bool | None, typer.Option("--untrained", help="The same architecture at initial weights.")]
DeviceName = Annotated[
    str | None, typer.Option(help="cpu, cuda, auto: over all GPUs (default: cuda where there is one).")
]


@corpus.command("run", cls=VariadicCommand)
def run_command(
    out: Annotated[Path, typer.Option(help="The folder of the run; one that is there goes on.")],
    texts: TextFiles = None,
    model: ModelName = None,
    analyses: AnalysisNames = None,
    settings: Settings = None,
    job: JobFile = None,
    length: Length = None,
    least: MinTokens = None,
    pack: Pack = None,
    column: Column = None,
    batch: Batch = None,
    shard: ShardSize = None,
    top: Top = None,
    tokens: TokenRows = None,
    untrained: Untrained = None,
    device: DeviceName = None,
    dtype: Dtype = None,
    workers: Workers = None,
    address: Address = None,
    threads: Threads = None,
) -> None:
    """Ask analyses of every text of a corpus: rows and summaries in Parquet; stopped or killed, it goes on where it was.

    Examples:  rheoscope corpus run --texts wiki.jsonl.gz --out run    ·    rheoscope corpus run --texts data/ --model gpt2 --pack
    --length 1024 --analyses head_types,agreement --set agreement.draws=0 --out run    ·    rheoscope corpus run --job job.toml --out run
    """
    from rheoscope.corpus.corpus_job import apply_settings, job_from_mapping, settings_from_toml
    from rheoscope.corpus.corpus_report import run_corpus

    options = {
        "texts": texts, "model": model, "length": length, "least": least, "pack": pack, "column": column, "batch": batch,
        "shard": shard, "top": top, "tokens": tokens, "untrained": untrained, "device": device, "dtype": dtype,
        "analyses": None if analyses is None else [name.strip() for name in analyses.split(",") if name.strip()],
    }  # fmt: skip
    job_settings = ({} if job is None else settings_from_toml(job)) | {
        name: value for name, value in options.items() if value is not None
    }
    base_job = job_from_mapping(job_settings)
    run_corpus(
        job_from_mapping(job_settings | {"analyses": apply_settings(base_job.analyses, settings or [])}),
        out,
        workers,
        address,
        threads,
    )


@corpus.command("resume")
def resume_command(folder: Folder, workers: Workers = None, address: Address = None, threads: Threads = None) -> None:
    """Go on with a run that was stopped or killed: only what is not there yet is computed.

    Examples:  rheoscope corpus resume run    ·    rheoscope corpus resume run --workers 4
    """
    from rheoscope.corpus.corpus_report import run_corpus
    from rheoscope.corpus.shards import read_manifest

    run_corpus(read_manifest(folder).job, folder, workers, address, threads)


@corpus.command("status")
def status_command(folder: Folder) -> None:
    """How far a run is: shards, texts, tokens, and what could not be asked.

    Examples:  rheoscope corpus status run
    """
    from rheoscope.corpus.corpus_report import show_status

    show_status(folder)


@corpus.command("query")
def query_command(
    folder: Folder,
    sql: Annotated[str, typer.Argument(help="A question in SQL; every analysis is a view (default: lists them).")] = "",
    csv: Annotated[Path | None, typer.Option(help="Write the answer to this file.")] = None,
) -> None:
    """Ask the rows of a run in SQL (DuckDB): every analysis is a view, and so are texts, rejects and summary.

    Examples:  rheoscope corpus query run    ·    rheoscope corpus query run "SELECT layer, avg(agreement) FROM agreement GROUP BY ALL"
    """
    from rheoscope.corpus.corpus_report import show_query

    show_query(folder, sql, csv)


@corpus.command("report")
def report_command(
    folder: Folder,
    beside: Annotated[
        Path | None, typer.Option(help="Another run of the same model and analyses: the drift between them.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the page to this file (default: report.html in the folder).")
    ] = None,
) -> None:
    """A page of a run: the distribution of every field with intervals, curves over layers, top examples, drift from another run.

    Examples:  rheoscope corpus report run    ·    rheoscope corpus report wiki --beside news --html drift.html
    """
    from rheoscope.corpus.corpus_page import save_page

    print(save_page(folder, beside, html))
