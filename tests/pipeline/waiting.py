"""Starts a job and shows its progress: `python -m tests.pipeline.waiting MASTER PATIENCE`."""

import sys

from rich.console import Console

from purgatory.pipeline.progress import Steps
from purgatory.spark.session import session

if __name__ == "__main__":
    master, patience = sys.argv[1:]
    with session(master) as spark:
        steps = Steps(spark, Console(stderr=True), interval=0.1, patience=float(patience))
        with steps.shown():
            steps.begin("waiting for an executor")
            spark.range(1000, numPartitions=8).rdd.count()
