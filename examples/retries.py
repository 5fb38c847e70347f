"""What a handler says when it cannot do its work now, or ever.

    workers run examples.retries
    echo '{"id": 7, "card": "4111"}' | workers publish orders
    echo '{"id": 8, "card": ""}' | workers publish orders
    workers dead list orders/billing

- Return: the message is finished.
- Raise anything: it is delivered again, later each time (exponential, with full jitter).
- Raise Retry(delay=...): it is delivered again after that many seconds.
- Raise Retry(delay=..., count=False): the same, without using up one of its max_attempts: it only has to wait.
- Raise Backoff(reason): what it needs is down. It gets nothing for a while, then one message to try with.
- Raise Reject(reason): it goes to the dead letter topic, orders.billing.dead. So does one that has used up its
  max_attempts, with what was raised last, and one whose body is no Order.
- Exceptions of others mean what policy= says.
"""

from dataclasses import dataclass

from framework import Backoff, Message, Reject, Retry, handler


@dataclass
class Order:
    id: int
    card: str


@handler("orders", "billing", max_attempts=5, policy={ConnectionError: Backoff})
def bill(order: Order) -> None:
    if not order.card:
        raise Reject(f"order {order.id} has no card")
    print(f"charged order {order.id}", flush=True)


@handler("orders", "audit", max_attempts=5)
def audit(message: Message) -> None:
    """A Message knows how often it was delivered, when it was published, and where it came from."""
    if message.attempts < 2:
        raise Retry("the first delivery is too early", delay=0.1)
    print(f"audited at attempt {message.attempts}: {message.body.decode()}", flush=True)
