"""The verbs of ``workers``, each imported when it is called; turns errors into a sentence and an exit code."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

import click

from framework.cli.exit_codes import Exit, as_text
from framework.errors import BrokerUnreachable, FrameworkError, PublishError, WrongUse
from framework.observe.logging import scrub, written_out
from framework.version import VERSION

log = logging.getLogger(__name__)

#: Verb -> what it does, in the order of --help. Each is ``framework.cli.<verb>:command``.
VERBS = {
    "run": "Run the handlers of modules until told to stop.",
    "ctl": "Show what a running worker does, and change its handlers.",
    "check": "Say whether `run` would work: modules, settings, brokers, leases.",
    "docs": "Describe the handlers of modules, as AsyncAPI.",
    "publish": "Publish the lines of a file, a message a line.",
    "tail": "Print the messages of a topic as they come.",
    "stats": "Count what waits, by topic and channel, and say why.",
    "pause": "Pause topics or channels at the broker.",
    "resume": "End a pause at the broker.",
    "scale-hint": "Print how many messages a handler has to do, for autoscalers.",
    "top": "Show the handlers of running workers, live.",
    "history": "Look up how messages ended.",
    "dead": "Look at dead letters, and replay or purge them.",
    "nsqd": "Run the embedded nsqd.",
    "nsqlookupd": "Run the embedded nsqlookupd.",
}


class Verbs(click.Group):
    """A click group that imports a verb only to run it, so that --help and errors are quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"framework.cli.{cmd_name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.command(cls=Verbs, epilog="\b\nExit codes:\n" + as_text(), context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, message="workers %(version)s")
def root() -> None:
    """Message-queue workers for NSQ: run handlers, check, publish, look, and an nsqd of their own."""


def run_command(arguments: Sequence[str]) -> int:
    """Run ``workers`` with ``arguments``; returns the exit code and never raises."""
    try:
        code = root.main(list(arguments), prog_name="workers", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return Exit.WRONG_USE
    except click.ClickException as error:
        return _say(_words(error), Exit.WRONG_USE)
    except WrongUse as error:
        return _say(str(error), Exit.WRONG_USE)
    except (BrokerUnreachable, PublishError) as error:
        return _say(str(error), Exit.UNREACHABLE)
    except FrameworkError as error:
        return _say(str(error), Exit.UNEXPECTED)
    except (KeyboardInterrupt, click.Abort):
        return 128 + signal.SIGINT
    except Exception as error:
        if isinstance(error, OSError) and _is_of_the_output(error):
            if isinstance(error, BrokenPipeError):
                return Exit.CLEAN
            return _say(f"the output cannot be written: {error.strerror}", Exit.UNEXPECTED)
        return _say(traceback.format_exc(), Exit.UNEXPECTED)
    return code if isinstance(code, int) else Exit.CLEAN


def _is_of_the_output(error: OSError) -> bool:
    """Whether stdout took nothing. What it has kept of it goes, or the interpreter would complain of it at its end."""
    if traceback.extract_tb(error.__traceback__)[-1].name not in ("echo", "output"):  # click's, and that of cli/output.py
        return False
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _words(error: click.ClickException) -> str:
    """Click's complaint in one sentence."""
    words = error.format_message().strip().rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{words} (see `{context.command_path} --help`)" if context else words


def _say(words: str, code: Exit) -> Exit:
    log.debug("exit with %d because of", code, exc_info=True)
    click.echo(f"workers: {written_out(scrub(words))}", err=True)
    return code
