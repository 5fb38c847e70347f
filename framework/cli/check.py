"""``workers check``: everything that would keep ``workers run`` from working, in one table, before it is deployed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import click

from framework.cli import options
from framework.cli.brokers import probe, running
from framework.cli.exit_codes import Exit, as_text
from framework.engine.fitness import Described, described, misfits, notes
from framework.engine.refusals import cautions, refusals
from framework.errors import BrokerUnreachable, WrongUse
from framework.handler import HandlerSpec
from framework.hooks import name_of
from framework.modules import import_handlers, words_of_others
from framework.observe.logging import scrub
from framework.settings import DEFAULT_BROKER, TABLE, Settings, check_writable
from framework.source import locate
from framework.transports import open_transports
from framework.transports.contract import Limits, NodeInfo, Transport
from framework.tuning import tuned, written

_DESCRIBE_SECONDS = 5.0


class Findings:
    """The table: a row for each thing looked at, printed as it is found, and the worst of the exit codes."""

    def __init__(self) -> None:
        self.code = Exit.CLEAN

    def good(self, what: str, words: str) -> None:
        click.echo(f"ok    {what:<9}{scrub(words)}")

    def note(self, what: str, words: str) -> None:
        click.echo(f"note  {what:<9}{scrub(words)}")

    def bad(self, what: str, words: str, code: Exit) -> None:
        click.echo(f"FAIL  {what:<9}{scrub(words)}")
        if self.code is not Exit.WRONG_USE:  # what a person must mend comes before what may mend itself
            self.code = code


@click.command(epilog=f"Without a flag:\n\n{options.without_flag()}\n\n\b\nExit codes:\n{as_text()}")
@click.argument("modules", nargs=-1, required=True, metavar="MODULE...")
@options.settings()
def command(modules: tuple[str, ...], settings: Settings) -> int:
    """Say whether `workers run MODULE...` with the same settings would work; nothing is started or changed.

    Looks at the settings, the modules and their handlers, whether the brokers answer, and whether they can do what the
    handlers ask of them: take the names, count attempts, keep a message for as long as each handler may run.
    """
    findings = Findings()
    for name, row in TABLE.items():
        value = getattr(settings, name)
        shown = written(settings.handlers) if name == "handlers" else _shown(value) if row.flag else "(set)"
        findings.good("setting", f"{name} = {shown if value else row.shown_default}")
    _check_ledger(settings, findings)
    handlers = _check_modules(modules, settings, findings)
    for transport, nodes in _check_brokers(settings, findings):
        found = _described(handlers, transport, settings, nodes)
        for words in dict.fromkeys([*refusals(handlers, transport, nodes), *misfits(handlers, transport, found)]):
            findings.bad("handler", words, Exit.WRONG_USE)
        for words in [*cautions(handlers, transport), *notes(handlers, found)]:
            findings.note("handler", words)
    return findings.code


def _described(handlers: Sequence[HandlerSpec], transport: Transport, settings: Settings, nodes: Sequence[NodeInfo]) -> Described:
    """What only a question for each handler's own topic and channel tells; nobody is asked who did not answer before."""
    if not nodes or not running(settings):
        return {spec.name: [] for spec in handlers}
    return described(handlers, transport, _DESCRIBE_SECONDS)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    return f"{value:g} s" if isinstance(value, float) else str(value)


def _check_ledger(settings: Settings, findings: Findings) -> None:
    try:
        if settings.ledger:
            check_writable(settings.ledger, "--ledger")
    except WrongUse as error:
        findings.bad("setting", str(error), Exit.WRONG_USE)


def _check_modules(modules: tuple[str, ...], settings: Settings, findings: Findings) -> list[HandlerSpec]:
    try:
        declared = import_handlers(modules)
    except WrongUse as error:
        findings.bad("module", str(error), Exit.WRONG_USE)
        return []
    try:
        handlers = tuned(declared, settings.handlers)
    except WrongUse as error:
        findings.bad("setting", str(error), Exit.WRONG_USE)
        handlers = declared
    for spec in handlers:
        findings.good("handler", f"{spec.name} {locate(spec.function)}: {_options(spec)}")
    if others := words_of_others(declared):
        findings.note("handler", f"imported along, and not run: {others}")
    return handlers


def _options(spec: HandlerSpec) -> str:
    batch = f", batches of {spec.batch} within {spec.linger:g} s" if spec.batch else ""
    middleware = f", in {', '.join(map(name_of, spec.middleware))}" if spec.middleware else ""
    return (
        f"{spec.concurrency} at once, {spec.max_in_flight} in flight, {spec.timeout:g} s, "
        f"{spec.max_attempts or 'any number of'} attempts{batch}{middleware}"
    )


def _check_brokers(settings: Settings, findings: Findings) -> list[tuple[Transport, list[NodeInfo]]]:
    """The transports that `workers run` would use, each with those of its nodes that answer."""
    urls = running(settings)
    try:
        transports = open_transports(urls or [DEFAULT_BROKER])
    except WrongUse as error:
        findings.bad("broker", str(error), Exit.WRONG_USE)
        return []
    if not urls:
        return [(transport, _check_embedded(settings, findings)) for transport in transports]
    return [(transport, _probe(transport, settings, findings)) for transport in transports]


def _check_embedded(settings: Settings, findings: Findings) -> list[NodeInfo]:
    """What `workers run` would start, as it would be."""
    from framework.nsqd.embedded import obstacles  # noqa: PLC0415
    from framework.nsqd.options import VERSION, Options  # noqa: PLC0415

    findings.good("broker", f"none set: `workers run` starts an nsqd on {settings.data_path}")
    for obstacle in obstacles(settings.data_path, tcp_address=settings.nsqd_tcp_address, http_address=settings.nsqd_http_address):
        findings.bad("broker", obstacle, Exit.WRONG_USE)
    known = Options()
    limits = Limits(lease=known.msg_timeout, max_lease=known.max_msg_timeout, max_grant=known.max_rdy_count)
    return [NodeInfo(settings.nsqd_tcp_address, f"nsqd {VERSION}", limits)]


def _probe(transport: Transport, settings: Settings, findings: Findings) -> list[NodeInfo]:
    try:
        nodes = probe(transport, settings.connect_deadline)
    except BrokerUnreachable as error:
        findings.bad("broker", str(error), Exit.UNREACHABLE)
        return []
    for node in nodes:
        limits = node.limits
        longest = "longer while it is touched" if math.isinf(limits.max_lease) else f"{limits.max_lease:g} s at most"
        lease = "there are no leases" if math.isinf(limits.lease) else f"a lease is {limits.lease:g} s, {longest}"
        findings.good("broker", f"{node.node} {node.server}: {lease}; up to {limits.max_grant} in flight a connection")
    _check_counts(transport, findings)
    return nodes


def _check_counts(transport: Transport, findings: Findings) -> None:
    """Handlers run without them: on NSQ they need the HTTP API, whose port may be another than we take it to be."""
    try:
        transport.topics()
    except BrokerUnreachable as error:
        longest = transport.capabilities.max_requeue
        words = f"`workers dead` and `workers stats` cannot count, and delays over {longest:g} s come early"
        findings.note("broker", f"{error}: {words}")
