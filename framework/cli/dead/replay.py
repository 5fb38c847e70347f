"""``workers dead replay``: dead letters go back to where their messages came from, and are counted."""

from __future__ import annotations

import click

from framework.cli import options
from framework.cli.dead import shown
from framework.cli.dead import topics as dead_topics
from framework.cli.dead.options import as_json, channel, dry_run, filters
from framework.cli.exit_codes import Exit, as_text
from framework.cli.progress import progress
from framework.cli.signals import Interrupted, interrupting
from framework.deadletters import DeadTopic, Replay, Selection, Sweep
from framework.errors import BrokerUnreachable, PublishError, WrongUse
from framework.settings import Settings


@click.command(short_help="Publish dead letters to where they came from.", epilog="\b\nExit codes:\n" + as_text())
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@filters()
@click.option("--to", metavar="TOPIC", help="Publish to TOPIC, not to the topic that each message came from.")
@click.option("--all-channels", is_flag=True, help="Replay also where other channels of the topic get the messages once more.")
@dry_run
@channel
@as_json
@options.settings("brokers", "data_path", "connect_deadline")
def replay(
    *, names: tuple[str, ...], selection: Selection, to: str | None, all_channels: bool, dry_run: bool, channel: str,
    as_json: bool, settings: Settings,
) -> int:  # fmt: skip
    """Publish the bodies of the dead letters in NAME again, to the topic that each came from.

    NAME is <topic>/<channel>, or the dead letter topic itself; only letters that fit all that is given. A letter is taken
    off when its message has been stored: when this is killed, some messages may come twice, none is lost. A message that is
    published to an NSQ topic goes to all of its channels: where there are others than the letter's own, nothing is
    replayed without --all-channels.
    """
    topics = dead_topics.named(names, settings, channel)
    for missing in dead_topics.missing(names, topics):
        click.echo(f"0 letters in {missing}: there is no such topic", err=as_json)
    return max((Replaying(topic, to, all_channels, dry_run, as_json).run(selection) for topic in topics), default=Exit.CLEAN)


class Replaying:
    """The replay of one topic, and what is said of it."""

    def __init__(self, topic: DeadTopic, to: str | None, all_channels: bool, dry_run: bool, as_json: bool) -> None:
        self._topic = topic
        self._dry_run = dry_run
        self._as_json = as_json
        self._chosen = 0
        self._sweep = Sweep(topic)
        self._replay = Replay(self._sweep, to=to, all_channels=all_channels)

    def run(self, selection: Selection) -> int:
        """Raises PublishError and BrokerUnreachable, with the counts so far in them."""
        try:
            self._run(selection)
        except Interrupted as signal:
            click.echo(f"workers: {signal} came", err=True)
            self._report()
            return signal.exit_code
        except (PublishError, BrokerUnreachable) as error:
            raise PublishError(f"{error}; {self._words()}", stored=None) from error
        except WrongUse as error:
            raise WrongUse(f"{error}; {self._words()}") if self._replay.replayed else error from None
        self._report()
        return Exit.INCOMPLETE if self._replay.failed or self._sweep.cut_short else Exit.CLEAN

    def _run(self, selection: Selection) -> None:
        shown_as = {"doing": "replaying", "done": "replayed", "of": "the letters"}
        with interrupting(), progress(self._topic.count, **shown_as) as bar, self._sweep:
            letters = self._sweep.chosen(selection)
            if self._dry_run:
                for letter in letters:
                    self._chosen += bool(self._replay.target(letter))
                return
            for replayed in self._replay.run(letters):
                bar.update(self._sweep.seen, replayed)

    def _words(self) -> str:
        topic, done = self._topic, self._replay
        targets = f" to {', '.join(sorted(done.targets))}" if done.targets else ""
        if self._dry_run:
            return f"would replay {self._chosen} of {topic.count} letters of {topic.name}{targets}"
        kept = topic.count - done.replayed - done.failed
        behind = self._sweep.left_behind
        twice = f"; {behind} of those replayed are perhaps still in {topic.name}" if behind else ""
        counts = f"{kept} kept, {done.failed} failed{f' ({done.why_failed})' if done.failed else ''}"
        return f"replayed {done.replayed} of {topic.count} letters of {topic.name}{targets}; {counts}{twice}"

    def _report(self) -> None:
        if self._as_json:
            done = self._replay
            counts = {"replayed": self._chosen if self._dry_run else done.replayed, "failed": done.failed}
            rest = {"kept": self._topic.count - done.replayed - done.failed, "dry_run": self._dry_run}
            click.echo(shown.json_line({"dead_topic": self._topic.name, "to": sorted(done.targets), **counts, **rest}))
        else:
            click.echo(self._words())
        if self._sweep.cut_short:
            click.echo(f"workers: {self._topic.name}: {self._sweep.cut_short}", err=True)
