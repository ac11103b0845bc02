"""How far Spark has come with the present step of a command: a bar on a terminal, or else a line now and then."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from purgatory.spark.session import describe, watching

_LOOK: Final = 0.5
"""Seconds from one look to the next."""

_NO_EXECUTOR: Final = (
    "no executor has been given to this application for {:.0f} s, and {} tasks are waiting: the cluster has none free, "
    "or none with the memory and cores that are asked for (--conf spark.executor.memory=1g, spark.executor.cores=1)"
)


class Steps:
    """The steps of a command. `interval` is the time from one line to the next, in seconds.

    After `patience` seconds with tasks and without an executor that runs one, it says so.
    """

    def __init__(self, spark: SparkSession, console: Console, interval: float = 10.0, patience: float = 60.0) -> None:
        self._spark = spark
        self._console = console
        self._interval = interval
        self._patience = patience
        self._name = "starting"

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def begin(self, name: str) -> None:
        """Begin a step, and say so. It must be called by the thread that starts Spark's jobs: they get this name."""
        self.say(name)
        self._name = name
        describe(self._spark, name)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress for as long as the context lasts."""
        over = threading.Event()
        showing = threading.Thread(target=self._show, args=(over,), daemon=True)
        showing.start()
        try:
            yield
        finally:
            over.set()
            showing.join()

    def _show(self, over: threading.Event) -> None:
        # Lines of others on stdout and stderr must not come through this console.
        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("tasks"),
            console=self._console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not self._console.is_terminal,
        )
        with watching(self._spark) as progress, bar:
            shown = bar.add_task("", visible=False)
            reported = busy = time.monotonic()
            while not over.wait(_LOOK):
                tasks = progress()
                now = time.monotonic()
                bar.update(
                    shown, description=self._name, completed=tasks.done, total=tasks.total, visible=tasks.total > 0
                )
                if tasks.running or tasks.done == tasks.total:
                    busy = now
                elif now >= busy + self._patience:
                    self.say(_NO_EXECUTOR.format(now - busy, tasks.total - tasks.done))
                    busy = now
                if tasks.total and not self._console.is_terminal and now >= reported + self._interval:
                    self.say(f"{self._name}: {tasks.done} of {tasks.total} tasks are done")
                    reported = now
