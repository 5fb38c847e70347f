"""What an executor does first with what Spark sends to it of ours. It is sent by value, so that it is there also where this
package is not, and says so."""

from __future__ import annotations

import sys
from typing import Any

from pyspark import cloudpickle


def lacks(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """A sentence that names the fix. Of an executor, or of the Python beside the driver that plans or has a source."""
    import platform  # noqa: PLC0415  (which has of this module what it is sent, and no import of it)

    from pyspark import TaskContext  # noqa: PLC0415

    # To the process of a stream's source beside the driver Spark gives no --py-files.
    in_task = TaskContext.get() is not None
    who, more = ("executor", "") if in_task else ("Python beside the driver", " and, for a stream, in PYTHONPATH")
    return ModuleNotFoundError(
        f"the {who} on {platform.node()} has no module {error.name}, which format nsq needs there: send this package along by "
        f"--py-files{more}, or an environment with all that it needs by --archives, as docs/spark.md shows for a cluster",
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
