"""`purgatory pipeline`: generate, replay, report, stream."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console, RenderableType
from rich.table import Table

from purgatory.journal.compact import KEEP, compact
from purgatory.spark import generate, replay, report, stream, trace
from purgatory.spark.errors import PipelineError, first_line
from purgatory.spark.files import refuse_existing
from purgatory.spark.progress import Steps
from purgatory.spark.session import check_java, check_remote, is_local, session
from purgatory.spark.traffic import PRESETS, Traffic

if TYPE_CHECKING:
    Subcommands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_to"]

V = TypeVar("V")

_TRAFFIC: Final = {
    "rate": "operations per second that arrive at each instance",
    "seconds": "the duration of the traffic, in seconds",
    "instances": "the number of instances",
    "median": "50th percentile of the time to complete, in seconds",
    "upper_quartile": "75th percentile of the time to complete, in seconds",
    "timeout": "the timeout of each operation, in seconds",
    "keys": "the number of keys",
    "keys_per_operation": "the number of keys that an operation draws; a key drawn twice is watched once",
    "zipf": "the exponent of the keys' distribution: 0 is uniform, 1 is Zipf's law",
    "seed": "the seed of the random generators; the same seed gives the same operations",
    "start": "the start of the traffic, in seconds since 1970",
    "purgatory": "the purgatory's name",
    "operation": "the operations' type",
}

_console = Console(stderr=True)


def add_to(subcommands: "Subcommands") -> None:
    """Add the subcommand `pipeline`."""
    pipeline = subcommands.add_parser(
        "pipeline",
        help="generate, replay, analyse and follow traffic, on Apache Spark",
        description="Generate, replay, analyse and follow traffic, on Apache Spark: this machine's cores or a cluster.",
    )
    commands = pipeline.add_subparsers(required=True, metavar="COMMAND")

    parser = _command(commands, "generate", _generate, "write a trace of generated traffic")
    parser.add_argument("output", metavar="TRACE", help="the directory to write, which must not exist")
    parser.add_argument(
        "--preset", choices=PRESETS, default="low", help="scenario of Kafka's redesign proposal (default: low)"
    )
    for field in fields(Traffic):
        low, high = (getattr(PRESETS[name], field.name) for name in ("low", "high"))
        default = f"{low}" if low == high else f"{low}, or {high} with high"
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=type(field.default),
            metavar="NAME" if isinstance(field.default, str) else "N",
            help=f"{_TRAFFIC[field.name]} (default: {default})",
        )

    parser = _command(commands, "replay", _replay, "run a trace through simulated purgatories with other settings")
    _trace(parser)
    parser.add_argument("output", metavar="OUTPUT", help="the directory to write, which must not exist")
    parser.add_argument(
        "--tick",
        type=_several(float),
        default=[0.001],
        metavar="N,…",
        help="length of a tick, in seconds (default: 0.001)",
    )
    parser.add_argument(
        "--wheel-size",
        type=_several(int),
        default=[20],
        metavar="N,…",
        help="number of buckets of a wheel (default: 20)",
    )
    parser.add_argument(
        "--purge-interval",
        type=_several(int),
        default=[1000],
        metavar="N,…",
        help="the number of dead entries above which a purge may begin (default: 1000)",
    )
    parser.add_argument(
        "--timeout",
        type=_several(_timeout),
        default=[None],
        metavar="N,…",
        help="the timeout in seconds, or recorded: each operation's own timeout (default: recorded)",
    )
    parser.add_argument("--purgatory", metavar="NAME", help="the name of the only purgatory to replay (default: all)")
    parser.add_argument("--operations", action="store_true", help="write a row for each operation too")
    parser.add_argument(
        "--no-costs",
        dest="costs",
        action="store_false",
        help="compute outcomes, waits and lateness alone, without a simulation: for thousands of timeouts",
    )
    parser.add_argument(
        "--split",
        type=int,
        default=replay.SPLIT,
        metavar="N",
        help="the number of operations above which an instance is cut in time (default: %(default)s)",
    )

    parser = _command(
        commands, "report", lambda options: _report, "tables, plots and a page about a trace, and a replay of it"
    )
    _trace(parser)
    parser.add_argument("output", metavar="OUTPUT", help="the directory to write, which must not exist")
    parser.add_argument("--replay", metavar="DIR", help="the output of `replay`: the cost of its configurations")
    parser.add_argument(
        "--timeout-rate",
        type=float,
        default=0.01,
        metavar="N",
        help="the share of operations that may time out (default: 0.01)",
    )
    parser.add_argument(
        "--window", type=float, metavar="N", help="length of a time window, in seconds (default: at most 60 windows)"
    )
    parser.add_argument("--top", type=int, default=20, metavar="N", help="the number of hottest keys (default: 20)")
    parser.add_argument(
        "--max-lateness",
        type=float,
        metavar="N",
        help="the greatest lateness of 99 %% of the expiries, in seconds (default: 1 %% of the timeout)",
    )

    parser = _command(
        commands, "stream", lambda options: _stream, "follow a journal while it grows: counts and waits by time and key"
    )
    parser.add_argument("journal", metavar="JOURNAL", help="the directory that servers write to")
    parser.add_argument("output", metavar="OUTPUT", help="the directory to write to")
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="the directory for the stream's progress")
    parser.add_argument(
        "--window", type=float, default=60.0, metavar="N", help="length of a time window, in seconds (default: 60)"
    )
    parser.add_argument(
        "--watermark", type=float, default=120.0, metavar="N", help="the wait for late rows, in seconds (default: 120)"
    )
    once = "read the present files, and end; windows that may get more rows stay open for the next run"
    parser.add_argument("--once", action="store_true", help=once)
    _skip(parser)

    title = "join the small files of a journal: many small files take long to read"
    parser = commands.add_parser(
        "compact", help=title, description=f"{title[0].upper()}{title[1:]}. It starts no Spark."
    )
    parser.add_argument("journal", metavar="JOURNAL", help="the directory that servers write to, or its URL")
    parser.add_argument(
        "--keep",
        type=float,
        default=KEEP,
        metavar="N",
        help="the seconds for which joined small files stay, for streams that have not read them yet (default: 8 days)",
    )
    parser.set_defaults(run=_compact)


Run: TypeAlias = Callable[[SparkSession, argparse.Namespace, Steps], RenderableType | None]
"""A command's work on Spark. It returns the answer for stdout, if there is one."""


def _command(
    commands: "Subcommands", name: str, prepare: Callable[[argparse.Namespace], Run], title: str
) -> argparse.ArgumentParser:
    """Add a command with the common options. `prepare` checks the options, and returns the function to run on Spark."""
    parser = commands.add_parser(name, help=title, description=f"{title[0].upper()}{title[1:]}.")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--master", metavar="URL", help="the master of Spark (default: local[*])")
    remote = "the Spark Connect server to run on, like sc://127.0.0.1:15002 (default: SPARK_REMOTE, if that is set)"
    place.add_argument("--remote", metavar="URL", help=remote)
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="a Spark setting; may be repeated"
    )
    parser.set_defaults(run=lambda options: _run(prepare, options))
    return parser


def _trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="a directory: a journal, or the output of `generate`")
    _skip(parser)


def _skip(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--skip-corrupt", action="store_true", help="leave out unreadable files, and report them")


def _run(prepare: Callable[[argparse.Namespace], Run], options: argparse.Namespace) -> None:
    """Run a command on Spark, here or on a Connect server, or hand it to `spark-submit` where Spark is a cluster."""
    try:
        run = prepare(options)
        settings = _settings(options.conf)
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has started this, and has the master
        remote = options.remote or (None if submitted or options.master else os.environ.get("SPARK_REMOTE") or None)
        master = options.master or "local[*]"
        if master.startswith("sc://"):
            raise PipelineError(f"a Spark Connect server is named by --remote, and not by --master: {master}")
        if remote is not None:
            check_remote(remote)
        else:
            check_java()
            if not submitted and not is_local(master):
                _submit(master, settings, sys.argv[sys.argv.index("pipeline") + 1 :])
        with session(None if submitted else master, settings, remote=remote) as spark:
            steps = Steps(spark, _console)
            with steps.shown():
                answer = run(spark, options, steps)
            if answer is not None:
                width = None if sys.stdout.isatty() else 160
                Console(width=width, highlight=False).print(answer, markup=False, soft_wrap=isinstance(answer, str))
    except PipelineError as error:
        sys.exit(f"purgatory pipeline: {error}")
    except (PySparkException, Py4JError) as error:
        sys.exit(f"purgatory pipeline: {first_line(error)}")
    except KeyboardInterrupt:
        sys.exit(130)


def _compact(options: argparse.Namespace) -> None:
    try:
        done = compact(options.journal, keep=options.keep, say=_say)
    except (ValueError, OSError) as error:
        sys.exit(f"purgatory pipeline: {error}")
    _say(f"{done.joined:,} small files joined into {done.files:,}; {done.deleted:,} deleted that were joined before")


def _say(text: str) -> None:
    _console.print(text, markup=False, highlight=False, soft_wrap=True)


def _settings(given: Sequence[str]) -> Mapping[str, str]:
    for each in given:
        if "=" not in each:
            raise PipelineError(f"--conf takes NAME=VALUE, not {each!r}")
    return dict(each.split("=", 1) for each in given)


def _submit(master: str, settings: Mapping[str, str], arguments: Sequence[str]) -> None:
    """Replace this process by `spark-submit`."""
    # spark-submit starts the Python of these variables, here and on the executors, and not the one that runs this.
    environment = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, **os.environ}
    environment.pop("SPARK_REMOTE", None)  # spark-submit takes no master beside it
    home = environment.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    program = os.path.join(home, "bin", "spark-submit")
    script = str(Path(__file__).with_name("submit.py"))
    sys.stderr.flush()
    # spark-submit starts the JVM, so it needs all settings.
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    os.execve(program, [program, "--master", master, *conf, script, *arguments], environment)


def _generate(options: argparse.Namespace) -> Run:
    changes = {field.name: getattr(options, field.name) for field in fields(Traffic)}
    traffic = PRESETS[options.preset].with_changes(**changes)

    def run(spark: SparkSession, options: argparse.Namespace, steps: Steps) -> None:
        refuse_existing(spark, options.output)
        expected = traffic.rate * traffic.seconds * traffic.instances
        steps.begin(f"generating about {expected:,.0f} operations of {traffic.instances} instances")
        generate.write(generate.generate(spark, traffic), options.output)
        steps.say(f"written to {options.output}")

    return run


def _open(spark: SparkSession, options: argparse.Namespace, steps: Steps) -> trace.Trace:
    steps.begin(f"opening {options.trace}")
    opened = trace.read(spark, options.trace, skip_corrupt=options.skip_corrupt)
    for skipped in opened.skipped:
        steps.say(f"skipped {skipped}")
    for warning in opened.warnings:
        steps.say(warning)
    return opened


def _replay(options: argparse.Namespace) -> Run:
    configurations = replay.sweep(options.tick, options.wheel_size, options.purge_interval, options.timeout)
    replay.check_split(options.split)
    if not options.costs and len({(each.wheel_size, each.purge_interval) for each in configurations}) > 1:
        raise PipelineError("--no-costs takes one --wheel-size and one --purge-interval: they change no outcome")

    def run(spark: SparkSession, options: argparse.Namespace, steps: Steps) -> Table:
        refuse_existing(spark, options.output)
        opened = _open(spark, options, steps)
        steps.begin(f"looking through {opened.files} files of {options.trace}")
        replayed = replay.replay(
            spark,
            opened,
            configurations,
            operations=options.operations,
            costs=options.costs,
            split=options.split,
            purgatory=options.purgatory,
        )
        how = f"running {replayed.simulations} simulations of" if options.costs else "counting the outcomes with"
        steps.begin(f"{how} {len(configurations)} configurations")
        table = _table(replay.write(replayed, options.output))
        steps.say(f"written to {options.output}")
        return table

    return run


def _table(summary: DataFrame) -> Table:
    """The summary of a replay, all instances together."""
    names = (
        "operations",
        "expired",
        "wake_ups",
        "cascaded",
        "buckets",
        "purges",
        "scanned",
        "peak_delayed",
        "peak_dead",
    )
    sums = [F.sum(name).alias(name) for name in names]
    settings = ("tick", "wheel_size", "purge_interval", "timeout")
    rows = summary.groupBy(*settings).agg(*sums, F.max("late_p99").alias("late_p99")).orderBy(*settings).collect()
    table = Table(title="all instances together; the lateness is that of the worst")
    for name in (*settings, *names, "late_p99"):
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        timeout = "recorded" if row.timeout is None else f"{row.timeout:g}"
        late = "" if row.late_p99 is None else f"{row.late_p99:.6f}"
        sizes = [f"{row[name]:,}" for name in ("wheel_size", "purge_interval")]
        counts = ("" if row[name] is None else f"{row[name]:,}" for name in names)
        table.add_row(f"{row.tick:g}", *sizes, timeout, *counts, late)
    return table


def _report(spark: SparkSession, options: argparse.Namespace, steps: Steps) -> str:
    recommended = report.report(
        spark,
        _open(spark, options, steps),
        options.output,
        replay=options.replay,
        timeout_rate=options.timeout_rate,
        window=options.window,
        top=options.top,
        max_lateness=options.max_lateness,
        say=steps.begin,
    )
    return str(recommended)


def _stream(spark: SparkSession, options: argparse.Namespace, steps: Steps) -> None:
    settings = stream.Settings(options.window, options.watermark, options.once, options.skip_corrupt)
    steps.begin(f"following {options.journal}")
    stream.follow(spark, options.journal, options.output, options.checkpoint, settings, steps.say)


def _several(one: Callable[[str], V]) -> Callable[[str], list[V]]:
    """Return a parser for text with commas between values."""

    def several(text: str) -> list[V]:
        try:
            return [one(part) for part in text.split(",")]
        except ValueError:
            also = ", or recorded," if one is _timeout else ""
            raise argparse.ArgumentTypeError(f"must be numbers{also} with commas between them, not {text!r}") from None

    return several


def _timeout(text: str) -> float | None:
    return None if text == "recorded" else float(text)
