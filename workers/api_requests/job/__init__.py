"""The Spark job: what the channels landed in spools becomes Parquet, counts and suspects."""
