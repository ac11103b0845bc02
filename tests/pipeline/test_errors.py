"""The reasons of Spark's errors, as a user reads them."""

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from purgatory.spark.errors import first_line


def test_lines_of_java_are_left_out(spark: SparkSession) -> None:
    with pytest.raises(Py4JError) as raised:
        spark.sparkContext._jvm.java.util.Optional.empty().get()  # type: ignore[union-attr]
    assert first_line(raised.value) == "java.util.NoSuchElementException: No value present"
    with pytest.raises(PySparkException) as failed:
        spark.sql("SELECT raise_error('no such thing')").collect()
    assert first_line(failed.value).startswith("[USER_RAISED_EXCEPTION] no such thing")
    assert "\tat " not in first_line(failed.value)
    assert first_line(Py4JError("the answer is empty")) == "the answer is empty"
