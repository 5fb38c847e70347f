"""All handlers of the pipeline, for ``workers run workers.api_requests.handlers``; what they do is in ``channels``."""

from workers.api_requests.channels.blocking import block
from workers.api_requests.channels.landing import archive, growth, spam

__all__ = ["archive", "block", "growth", "spam"]
