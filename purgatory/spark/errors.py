"""The errors of the pipeline."""

import re

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from purgatory import PurgatoryError


class PipelineError(PurgatoryError):
    """The pipeline cannot use an argument, a file or an answer, which the message names."""


def first_line(error: PySparkException | Py4JError) -> str:
    """Return the reason of an error of Spark, without the lines of Java that follow it."""
    if isinstance(error, PySparkException):
        return str(error).split("JVM stacktrace:")[0].strip()
    raised = re.findall(r"^(?:: |Caused by: )(.+)$", str(error), re.MULTILINE) or str(error).splitlines()
    # The innermost cause tells what is wrong with a file, but not with which file.
    return str(next((line for line in raised if "FAILED_READ_FILE" in line), raised[-1]))
