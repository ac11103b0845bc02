"""`purgatory pipeline`: report, rollup, stream, generate."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console

from purgatory.pipeline import cube, generate, places, report, stream, trace
from purgatory.pipeline.generate import PRESETS, Traffic
from purgatory.pipeline.progress import Steps
from purgatory.pipeline.words import kind_name
from purgatory.spark.errors import PipelineError, first_line
from purgatory.spark.session import session

if TYPE_CHECKING:
    Subcommands = argparse._SubParsersAction[argparse.ArgumentParser]

_console = Console(stderr=True)
_FIRST, _LAST = datetime(1970, 1, 2, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
"""Before and after all times of a journal."""


def add_to(subcommands: "Subcommands") -> None:
    """Add the subcommand `pipeline`."""
    title = "find out which timeout and capacity a service needs, from its journal, on Apache Spark"
    pipeline = subcommands.add_parser("pipeline", help=title, description=f"{title[0].upper()}{title[1:]}.")
    commands = pipeline.add_subparsers(required=True, metavar="COMMAND")

    about = "The page says which timeout gives the share of timeouts that you allow, how many operations are pending"
    about += " with it, and what is wrong. A cube is read without starting Spark."
    parser = _command(commands, "report", _report, "write a page and tables about a journal or its cube", about)
    parser.add_argument("source", metavar="JOURNAL|CUBE", help="directory of a journal, or of its cube")
    parser.add_argument("output", metavar="OUT", help="directory to write, which must be empty or missing")
    parser.add_argument(
        "--timeout-rate",
        type=float,
        default=0.01,
        metavar="N",
        help="share of operations that may expire, from 0 to 1 (default: 0.01)",
    )
    parser.add_argument(
        "--after-expiry",
        choices=("ask-again", "leave"),
        help="what clients do after an answer (default: what the journal shows)",
    )
    about = "a day, or the slot of a time in UTC like 2026-11-26T09:30 (default: the source's"
    parser.add_argument("--from", dest="first", type=_first, metavar="TIME", help=f"begin with {about} first)")
    parser.add_argument("--to", dest="last", type=_last, metavar="TIME", help=f"end with {about} last)")
    parser.add_argument(
        "--compare", type=_day, metavar="DAY", help="compare the last day with this one, for example 2026-11-25"
    )

    about = (
        "It scans the days that are missing in the cube, and the newest two again, so run it once a day. Old days of"
    )
    about += " the journal can then be deleted."
    parser = _command(commands, "rollup", _rollup, "write the cube of a journal: a small file for each day", about)
    _journal(parser)
    parser.add_argument("--day", type=_day, metavar="DAY", help="write only this day (default: all that are missing)")

    about = "It writes each row exactly once, also if it is killed and started again with the same checkpoint."
    parser = _command(commands, "stream", _stream, "follow a journal while it grows, and write its cube", about)
    _journal(parser)
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="directory for the stream's progress")
    parser.add_argument(
        "--slot", type=float, default=60.0, metavar="N", help="length of a slot of time, in seconds (default: 60)"
    )
    parser.add_argument("--once", action="store_true", help="read the files that exist, and end")

    about = "Use it to try the pipeline without a server. The same options give the same rows, however Spark divides"
    about += " the work."
    parser = _command(commands, "generate", _generate, "write a journal of generated traffic", about)
    parser.add_argument("output", metavar="JOURNAL", help="directory to write, which must not exist")
    traffic = parser.add_argument_group("traffic")
    traffic.add_argument(
        "--preset",
        choices=PRESETS,
        default="service",
        help="traffic of a service with troubles, or of Kafka's redesign proposal (low, high) (default: service)",
    )
    for field in fields(Traffic):
        values = {preset: getattr(each, field.name) for preset, each in PRESETS.items()}
        default = f"{values['service']}"
        if len(set(values.values())) > 1:
            default = ", ".join(f"{value} with {preset}" for preset, value in values.items())
        traffic.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=type(field.default),
            metavar="NAME" if isinstance(field.default, str) else "N",
            help=f"{field.metadata['about']} (default: {default})",
        )


def _command(
    commands: "Subcommands", name: str, run: Callable[[argparse.Namespace], None], title: str, about: str
) -> argparse.ArgumentParser:
    """Add a command with the common options, which `run` runs."""
    parser = commands.add_parser(name, help=title, description=f"{title[0].upper()}{title[1:]}. {about}")
    spark = parser.add_argument_group("Spark")
    place = spark.add_mutually_exclusive_group()
    place.add_argument("--master", metavar="URL", help="master of Spark (default: local[*])")
    remote = "Spark Connect server to run on, like sc://127.0.0.1:15002 (default: SPARK_REMOTE, if that is set)"
    place.add_argument("--remote", metavar="URL", help=remote)
    conf = "Spark setting; repeat it for more"
    spark.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help=conf)
    parser.set_defaults(run=lambda options: _run(run, options))
    return parser


def _journal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("journal", metavar="JOURNAL", help="directory that servers write to")
    parser.add_argument("cube", metavar="CUBE", help="directory to write to")


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a day like 2026-11-26, not {text!r}") from None


def _first(text: str) -> datetime:
    """The begin of a day, or a time."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a day or a time like 2026-11-26T09:30, not {text!r}") from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _last(text: str) -> datetime:
    """The end of a day, or a time."""
    time = _first(text)
    return time + timedelta(days=1) if len(text) <= len("2026-11-26") else time


def _run(run: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> None:
    try:
        run(options)
    except PipelineError as error:
        sys.exit(f"purgatory pipeline: {error}")
    except (PySparkException, Py4JError) as error:
        sys.exit(f"purgatory pipeline: {first_line(error)}")
    except KeyboardInterrupt:
        sys.exit(130)


@contextmanager
def _spark(options: argparse.Namespace) -> Iterator[tuple[SparkSession, Steps]]:
    """Yield Spark, here, on a cluster or on a Connect server, and the steps of the command, which are shown."""
    for each in options.conf:
        if "=" not in each:
            raise PipelineError(f"--conf takes NAME=VALUE, not {each!r}")
    if (options.master or "").startswith("sc://"):
        raise PipelineError(f"a Spark Connect server is named by --remote, and not by --master: {options.master}")
    settings = dict(each.split("=", 1) for each in options.conf)
    remote = _remote(options)
    with session(None if remote else options.master, settings, remote=remote) as spark:
        steps = Steps(spark, _console)
        with steps.shown():
            yield spark, steps


def _remote(options: argparse.Namespace) -> str | None:
    return options.remote or (None if options.master else os.environ.get("SPARK_REMOTE") or None)


def _is_elsewhere(options: argparse.Namespace, path: str) -> bool:
    """Whether only Spark finds `path`: on its Connect server's machine, or on a file system of Hadoop's."""
    is_set = (
        any(each.startswith("spark.hadoop.fs.defaultFS=") for each in options.conf) or "HADOOP_CONF_DIR" in os.environ
    )
    return _remote(options) is not None or is_set or places.needs_spark(path)


def _generate(options: argparse.Namespace) -> None:
    given = {field.name: getattr(options, field.name) for field in fields(Traffic)}
    changes = {name: value for name, value in given.items() if value is not None}
    traffic = replace(PRESETS[options.preset], **changes)
    if not _is_elsewhere(options, options.output) and Path(options.output).exists():
        raise PipelineError(f"{options.output} exists: name another directory, for journals are not mixed")
    with _spark(options) as (spark, steps):
        expected = traffic.rate * traffic.seconds * traffic.instances
        steps.begin(f"generating about {expected:,.0f} operations of {traffic.instances} instances")
        generate.write(generate.generate(spark, traffic), options.output)
        steps.say(f"written to {options.output}")


def _rollup(options: argparse.Namespace) -> None:
    if not _is_elsewhere(options, options.journal):
        trace.refuse_empty(options.journal)
    with _spark(options) as (spark, steps):
        steps.begin(f"rolling up {options.journal}")
        days = [] if options.day is None else [options.day]
        trace.rollup(spark, options.journal, options.cube, steps.say, days)
        steps.say(f"written to {options.cube}")


def _report(options: argparse.Namespace) -> None:
    report.check(options.output, options.timeout_rate)

    first, last = options.first or _FIRST, options.last or _LAST
    if first >= last:
        raise PipelineError(
            f"--from must be before the end of --to: {first:%Y-%m-%d %H:%M} is not before {last:%Y-%m-%d %H:%M}"
        )

    def is_requested(day: date) -> bool:
        if day == options.compare:
            return True
        begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
        return begin + timedelta(days=1) > first and begin < last

    table = _table(options, is_requested)
    if options.first or options.last:
        table = cube.between(table, first, last, options.compare)
    written = report.report(table, options.output, options.timeout_rate, options.compare, options.after_expiry)
    lines = [f"{each.colour}: {each.text} {each.evidence}" for each in written.verdicts if each.colour != "green"]
    lines += [f"{kind_name(kind)}: {advice}" for kind, advice in written.advice.items()]
    sys.stdout.write("".join(f"{line}\n" for line in [*lines, f"written to {written.page}"]))


def _table(options: argparse.Namespace, is_requested: Callable[[date], bool]) -> pa.Table:
    """The rows of the cube that a report is about. One on this machine is read without Spark."""
    source, is_elsewhere = options.source, _is_elsewhere(options, options.source)
    if _remote(options) is None and not places.needs_spark(source) and cube.files(source):
        return cube.load(source, is_requested)
    if not is_elsewhere:
        trace.refuse_empty(source)
    with _spark(options) as (spark, steps):
        try:
            if is_elsewhere and cube.files(source, spark):
                steps.begin(f"reading {source}")
                table = cube.load(source, is_requested, spark)
            else:
                steps.begin(f"rolling up {source}")
                table = trace.of_days(spark, source, is_requested)
        except trace.Missing:
            # With --remote, rollup has written a cube here.
            if places.needs_spark(source) or not cube.files(source):
                raise
            table = cube.load(source, is_requested)
        steps.say("writing the report")
        return table


def _stream(options: argparse.Namespace) -> None:
    def refuse_another(spark: SparkSession | None = None) -> None:
        if cube.days_of(options.cube, spark):
            raise PipelineError(f"{options.cube} is a cube that rollup has written: name another directory")

    is_elsewhere = _is_elsewhere(options, options.cube)
    if not is_elsewhere:
        refuse_another()
    with _spark(options) as (spark, steps):
        if is_elsewhere:
            refuse_another(spark)
        steps.begin(f"following {options.journal}")
        directories = options.journal, options.cube, options.checkpoint
        stream.follow(spark, *directories, steps.say, slot=options.slot, once=options.once)
