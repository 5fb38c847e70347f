"""An executor's part of a read, where there is pyarrow and our reader and nothing else of the framework's: prints the values.

Its input is what Spark sends to an executor: the pickled reader and a partition.
"""

import pickle
import sys

for name in ("gevent", "greenlet", "msgspec", "click", "yaml", "rich", "sentry_sdk", "prometheus_client"):
    sys.modules[name] = None  # type: ignore[assignment]  # an import of it fails

reader, partitions = pickle.load(sys.stdin.buffer)
for partition in partitions:
    for batch in reader.read(partition):
        print(*(value.decode() for value in batch["value"].to_pylist()), sep="\n")
