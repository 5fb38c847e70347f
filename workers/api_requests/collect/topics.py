"""The names by which the pipeline's parts find each other at the broker."""

TOPIC = "api_requests"
"""The lines of the log."""
CHANNELS = ("archive", "growth", "spam")
"""Each of them gets every line."""
SUSPECTS_TOPIC = "spam_suspects"
"""Addresses that the job found abusing the site."""
SUSPECTS_CHANNEL = "blocklist"
