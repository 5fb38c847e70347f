"""The pipeline of the demo. Its rooms in the way of the data: ``publish`` (lines of a log to the topic), ``channels`` (messages
of the topic to spools), ``job`` (spools to Parquet and suspects, with Spark), ``report`` (Parquet to a page and pictures).

``handlers`` and ``job`` are what is deployed; ``demo`` runs all of it once, from one command.
"""
