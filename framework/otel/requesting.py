"""Requests to a collector by HTTP: each is bounded in time, its answer in size, and what fails is told. No retries: the SDK's.

The SDK reads an answer whole, and its time limit is for each packet: an answer without an end takes all memory, or all time.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import gevent
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from requests.exceptions import ReadTimeout, TooManyRedirects

from framework.observe.answers import beginning_of

Tell = Callable[[str], None]


class Bounded(HTTPAdapter):
    """``tell`` is called with why a request has failed, and with nothing when one has not."""

    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self._tell = tell

    def send(self, request: PreparedRequest, *_: Any, timeout: Any = None, **options: Any) -> Response:
        try:
            with gevent.Timeout(timeout if isinstance(timeout, int | float) else None) as limit:
                answer = super().send(request, **{**options, "stream": True, "timeout": timeout})
                answer.raw = io.BytesIO(beginning_of(answer.raw))
        except gevent.Timeout as late:
            if late is not limit:
                raise
            self._tell("it has not answered in time")
            raise ReadTimeout("no whole answer in time", request=request) from None
        except Exception as error:
            self._tell(type(error).__name__)
            raise
        self._tell("" if answer.status_code < 300 else f"HTTP {answer.status_code}")
        if 300 <= answer.status_code < 400:  # the SDK follows none, and takes one for a success
            raise TooManyRedirects("it redirects", request=request)
        return answer


def session(tell: Tell) -> Session:
    made, adapter = Session(), Bounded(tell)
    for scheme in ("http://", "https://"):
        made.mount(scheme, adapter)
    return made
