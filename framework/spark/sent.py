"""What an executor does first with what Spark sends to it of ours. It is sent by value, so that it is there also where this
package is not, and says so."""

from __future__ import annotations

import sys
from typing import Any

from pyspark import cloudpickle


def lacks(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """In a sentence that names the fix. Of an executor."""
    import platform  # noqa: PLC0415  (which has of this module what it is sent, and no import of it)

    return ModuleNotFoundError(
        f"the executor on {platform.node()} has no module {error.name}, which format nsq needs there: send this package along by "
        "--py-files, or an environment with all that it needs by --archives, as docs/spark.md shows for a cluster",
        name=error.name,
    )


def _received(content: bytes) -> Any:
    import pickle  # noqa: PLC0415

    try:
        kind, state = pickle.loads(content)  # noqa: S301 (the driver's own)
    except ModuleNotFoundError as error:
        raise lacks(error) from None
    found = kind.__new__(kind)
    found.__dict__.update(state)
    return found


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Sent:
    """A base of what Spark pickles for its tasks: a reader or a writer, and the source beside it."""

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        return _received, (cloudpickle.dumps((type(self), self.__dict__)),)  # type: ignore[no-untyped-call]
