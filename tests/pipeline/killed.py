"""Reads a stream, and kills itself in batch 2: `python -m tests.pipeline.killed URL CHECKPOINT OUTPUT`.

The rows of each batch are written to a file of `OUTPUT` before.
"""

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame

from purgatory.spark.session import session
from purgatory.spark.source import register

if __name__ == "__main__":
    url, checkpoint, output = sys.argv[1:]

    def write(rows: DataFrame, batch: int) -> None:
        """The sink."""
        (Path(output) / f"{batch}").write_text(json.dumps(rows.collect()))
        if batch == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    with session("local[2]", {}) as spark:
        register(spark)
        stream = spark.readStream.format("purgatory").options(url=url, maxMessagesPerBatch="1").load()
        writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
