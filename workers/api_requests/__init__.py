"""The pipeline of the demo. Its rooms in the way of the data: ``collect`` (lines of a log to the topic, and its messages to
spools), ``stream`` (spools to Parquet, with Spark), ``detect`` (what lines mean: growth, suspects, the block list; ``stream``
calls it), ``report`` (Parquet to a page and pictures).

``handlers`` and ``stream`` are what is deployed; ``demo`` runs all of it once, from one command.
"""
