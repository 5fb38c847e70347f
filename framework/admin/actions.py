"""What may be asked of handlers while they run: each request checked, and said in a sentence. It does nothing itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from framework.errors import WrongUse
from framework.handler import OPTIONS

ACTIONS = {
    "pause": "ask for no more messages; what has come is handled",
    "resume": "end a pause or a drain",
    "drain": "pause, and give back what has not been started; the process goes on",
    "max_in_flight": "have at most `value` messages received and not settled, in each process",
    "concurrency": "have at most `value` calls run at once, in each process",
}
NUMBERS = ("max_in_flight", "concurrency")
"""Those that have a value."""
_DONE = {"pause": "paused", "resume": "resumed", "drain": "drained"}
_FIELDS = ("action", "handler", "value")
Command = dict[str, Any]
"""``action``; ``handler``, None for all; ``value``, None where the action has none."""


def checked(asked: object, handlers: Collection[str]) -> Command:
    """``asked`` as a command. Raises WrongUse."""
    if not isinstance(asked, Mapping):
        raise WrongUse('an action is a JSON object: write {"action": "pause", "handler": "orders/billing"}')
    for name in asked:
        if name not in _FIELDS:
            raise WrongUse(f"unknown field {name!r}: an action has {', '.join(_FIELDS)}")
    action, handler, value = (asked.get(name) for name in _FIELDS)
    if not (isinstance(action, str) and action in ACTIONS):
        nearest = get_close_matches(str(action), ACTIONS, 1, cutoff=0.0)[0]
        raise WrongUse(f"there is no action {action!r}: did you mean {nearest!r}? There are {', '.join(ACTIONS)}")
    if handler is not None and not (isinstance(handler, str) and handler in handlers):
        known = ", ".join(sorted(handlers)[:20]) + (", …" if len(handlers) > 20 else "")
        raise WrongUse(f"there is no handler {handler!r} here: name one of {known}")
    if action not in NUMBERS:
        if value is not None:
            raise WrongUse(f"{action} has no value: leave it out")
    elif handler is None:
        raise WrongUse(f"{action} is for one handler: name it, as topic/channel")
    elif not OPTIONS[action].allows(value):
        raise WrongUse(f"{action}={value!r} is not {OPTIONS[action]}; to have none, pause it")
    return {"action": action, "handler": handler, "value": value}


def has_effect(command: Command, row: Mapping[str, Any]) -> bool:
    """Whether ``command`` has taken effect on the handler of ``row``, in each of its processes."""
    action, pause = command["action"], row["pause"]
    if action in NUMBERS:
        return bool(row[action] == command["value"] * row["processes"])
    by = pause["by"] if pause is not None else None
    if action == "resume":
        return by not in ("operator", "drain")
    wanted = ("operator", "drain") if action == "pause" else ("drain",)
    return by in wanted and pause["processes"] >= row["processes"]


def in_words(command: Command) -> str:
    """What has been done."""
    who = command["handler"] or "all handlers"
    if command["action"] in NUMBERS:
        return f"{command['action']} of {who} is now {command['value']}"
    return f"{_DONE[command['action']]} {who}"
