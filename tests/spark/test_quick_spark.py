"""The tests' own Spark starts quickly."""

from __future__ import annotations

import pytest

from tests import quick_spark

pytestmark = pytest.mark.spark


def test_the_training_of_spark_ended_without_an_error(java: None) -> None:
    assert not quick_spark.FAILED.exists(), quick_spark.FAILED.read_text()
