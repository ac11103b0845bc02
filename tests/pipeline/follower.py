"""Follows a journal until it is killed: `python -m tests.pipeline.follower JOURNAL CUBE CHECKPOINT`.

It merges two batches, four and eight, so that few batches are enough.
"""

import sys

from purgatory.pipeline import compact
from purgatory.pipeline.stream import follow
from purgatory.spark.session import session

if __name__ == "__main__":
    compact.SIZES = (2, 4, 8)
    with session("local[2]", {"spark.sql.shuffle.partitions": "1"}) as spark:
        journal, cube, checkpoint = sys.argv[1:]
        follow(spark, journal, cube, checkpoint, print, slot=1.0, interval=0.2)
