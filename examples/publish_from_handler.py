"""A handler that publishes: each message of one topic becomes messages of another.

    workers run examples.publish_from_handler
    echo '{"id": 7, "items": ["tea", "cups"]}' | workers publish purchases

publish() returns when the broker has stored the message. If the handler fails after that, its own message comes
again and so does what it published: handlers downstream must bear to see a message twice.
"""

import msgspec

from framework import handler, publish, publish_many


class Purchase(msgspec.Struct):
    id: int
    items: list[str]


class Parcel(msgspec.Struct):
    purchase: int
    item: str


@handler("purchases", "packing")
def pack(purchase: Purchase) -> None:
    publish_many("parcels", [Parcel(purchase.id, item) for item in purchase.items])
    publish("invoices", {"purchase": purchase.id, "parcels": len(purchase.items)}, delay=0.1)


@handler("parcels", "shipping")
def ship(parcel: Parcel) -> None:
    print(f"shipped {parcel.item} of purchase {parcel.purchase}", flush=True)


@handler("invoices", "printing")
def invoice(invoice: dict) -> None:
    print(f"invoice for {invoice['parcels']} parcels of purchase {invoice['purchase']}", flush=True)
