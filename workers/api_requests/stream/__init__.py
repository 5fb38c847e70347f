"""The Spark job: three streams from the spools to an archive in Parquet, and to what ``detect`` makes of the lines."""
