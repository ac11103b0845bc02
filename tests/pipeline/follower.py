"""Follows a journal until it is killed: `python -m tests.pipeline.follower JOURNAL OUTPUT CHECKPOINT`."""

import sys

from purgatory.spark.session import session
from purgatory.spark.stream import follow
from tests.pipeline.test_stream import SETTINGS

if __name__ == "__main__":
    with session("local[2]", {"spark.sql.shuffle.partitions": "1"}) as spark:
        journal, output, checkpoint = sys.argv[1:]
        follow(spark, journal, output, checkpoint, SETTINGS)
