"""Brings requests in: the lines of a log to the topic, by ``workers publish``, and the topic's messages to a spool for each
channel."""
