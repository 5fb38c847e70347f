"""NSQ for Spark: ``format("nsq")`` as a source (from a spool) and as a sink. Importing it needs pyspark."""

from framework.spark.source import NsqDataSource, named

__all__ = ["NsqDataSource", "named"]
