"""Publishes the bodies of dead letters to where their messages came from: stored first, taken off the dead letter topic after.

So a crash in between leaves a message twice, never not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from framework import names
from framework.bodies import CHUNK_BYTES
from framework.deadletters.letter import Letter
from framework.deadletters.sweep import Sweep
from framework.errors import BadMessage, PublishError, WrongUse
from framework.headers import Headers
from framework.transports.contract import Producer, Transport

TOGETHER = 100
"""Letters whose bodies are under way at once."""


class Replay:
    """Replays letters of ``sweep``, and counts what became of each.

    ``to``: the topic to publish to in place of the one that each came from. ``all_channels``: publish also where other
    channels of the topic get the message once more.
    """

    def __init__(self, sweep: Sweep, *, to: str | None = None, all_channels: bool = False) -> None:
        self.replayed = 0
        self.failed = 0
        """Letters that no broker would take: they stay where they are."""
        self.why_failed = ""
        """Why the first of them did."""
        self.targets: set[str] = set()
        """The topics published to."""
        self._sweep = sweep
        self._transport: Transport = sweep.topic.transport
        self._to = names.check("topic", to) if to else None
        self._all_channels = all_channels
        self._producer: Producer = self._transport.producer()

    def run(self, letters: Iterable[Letter]) -> Iterator[int]:
        """Yields how many were replayed, as it goes on.

        Raises WrongUse where other channels would get a message again, PublishError when the broker does not store one.
        """
        try:
            for some in _together(letters):
                for (target, headers), group in groupby(some, lambda letter: (self.target(letter), letter.headers)):
                    self._replay(target, list(group), headers)
                yield self.replayed
        finally:
            self._producer.close()

    def target(self, letter: Letter) -> str:
        """The topic that ``letter`` goes to; empty when that is not known. Raises WrongUse as ``run`` does."""
        target = self._to or letter.topic
        if target and target not in self.targets:
            if not self._all_channels:
                self._refuse_other_channels(target, letter.channel)
            self.targets.add(target)
        return target

    def _refuse_other_channels(self, target: str, channel: str) -> None:
        """A broker with channels takes messages for a topic, not for one of them."""
        if not self._transport.capabilities.fan_out:
            return
        found = sorted(self._transport.channels(target))
        others = [one for one in found if one != channel] if self._to is None else found[1:]
        if others:
            which = f"{', '.join(found[:5])}{', …' if len(found) > 5 else ''}"
            raise WrongUse(
                f"topic {target!r} has the channel{'s' if len(found) > 1 else ''} {which}: a message that is published "
                "to a topic goes to all of its channels; add --all-channels if that is wanted, or name another topic with --to"
            )

    def _replay(self, target: str, letters: list[Letter], headers: Headers) -> None:
        if not target:
            self._fail(len(letters), "only their bodies were kept, not where they came from: name the topic with --to")
            return
        trouble: PublishError | None = None
        for letter, error in zip(letters, self._publish(target, letters, headers), strict=True):
            if error is None:
                self._sweep.take(letter)
                self.replayed += 1
            elif isinstance(error, BadMessage):
                self._fail(1, str(error))
            else:
                trouble = error
        if trouble is not None:
            raise trouble

    def _publish(self, target: str, letters: list[Letter], headers: Headers) -> list[PublishError | BadMessage | None]:
        """What became of each. One body that is refused before anything is sent must not keep back the others."""
        try:
            return list(self._producer.publish_each(target, [letter.body for letter in letters], **self._with(headers)))
        except BadMessage as error:
            if len(letters) == 1:
                return [error]
            return [outcome for letter in letters for outcome in self._publish(target, [letter], headers)]

    def _with(self, headers: Headers) -> dict[str, Any]:
        """Where the messages have moved to a broker that carries none, their bodies go alone."""
        return {"headers": headers} if headers and self._transport.capabilities.headers else {}

    def _fail(self, count: int, why: str) -> None:
        self.failed += count
        self.why_failed = self.why_failed or why


def _together(letters: Iterable[Letter]) -> Iterator[list[Letter]]:
    some: list[Letter] = []
    for letter in letters:
        some.append(letter)
        if len(some) == TOGETHER or sum(len(one.body) for one in some) > CHUNK_BYTES:
            yield some
            some = []
    if some:
        yield some
