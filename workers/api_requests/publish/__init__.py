"""The lines of a log on their way to the topic: looked at first, then published by ``workers publish``."""
