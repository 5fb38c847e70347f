"""greenstalk, as its documentation shows: reserve, delete, one job at a time."""

import sys

import greenstalk  # type: ignore[import-not-found]

job, address = sys.argv[1:]
host, port = address.split(":")


def reserve() -> None:
    with greenstalk.Client((host, int(port)), encoding=None, watch="bench") as client:
        while True:
            client.delete(client.reserve())


globals()[job]()
