"""All handlers of the pipeline, for ``workers run workers.api_requests.handlers``; see ``collect`` and ``detect``."""

from workers.api_requests.collect.landing import archive, growth, spam
from workers.api_requests.detect.blocking import block

__all__ = ["archive", "block", "growth", "spam"]
