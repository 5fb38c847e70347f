"""Lets Spark find ``format("nsq")`` by itself: it looks for top-level packages named ``pyspark_*`` with a ``DefaultSource``."""

from framework.spark import NsqDataSource as DefaultSource
from framework.spark import named
from framework.spark.lag import Lag, lag

__all__ = ["DefaultSource", "Lag", "lag", "named"]
