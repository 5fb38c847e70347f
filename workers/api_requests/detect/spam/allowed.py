"""Addresses and networks that are no suspects, whatever they do: monitors, colleagues, those who test the site by order."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from framework import WrongUse

_HOST = re.compile(r"(?=.*[^\W\d_])[\w-]+(\.[\w-]+)*\.?")
_DIGITS = re.compile(r"(.*\.)?[0-9]+\.?")
"""A name whose last part is a number is none of a host's: an address was meant, and would match no line."""
_FIX = "say an address, a network as 192.0.2.0/24, or the whole name of a host"


class Allowed:
    """``names``: addresses, networks as 192.0.2.0/24, or names of hosts where the log has those. Raises WrongUse."""

    def __init__(self, names: Iterable[str]) -> None:
        given = [name.strip() for name in names]
        self._names = {_name(name) for name in given if "/" not in name}
        self._networks = [_network(name) for name in given if "/" in name]

    def __contains__(self, address: object) -> bool:
        found = _address(str(address))
        if found is None:
            return str(address).lower() in self._names
        return str(found) in self._names or any(found in network for network in self._networks)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """That of IPv4 for ``::ffff:192.0.2.1``, as servers log who comes by IPv4 to a socket of IPv6."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _name(name: str) -> str:
    """As lines have it."""
    if (address := _address(name)) is not None:
        return str(address)
    if not _HOST.fullmatch(name) or _DIGITS.fullmatch(name):
        raise WrongUse(f"--allow {name!r} is no address and no name of a host: {_FIX}")
    return name.lower()


def _network(name: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        network = ipaddress.ip_network(name)
    except ValueError as error:
        raise WrongUse(f"--allow {name}: {error}; {_FIX}") from None
    if network.prefixlen >= 96 and isinstance(mapped := _address(str(network.network_address)), ipaddress.IPv4Address):
        return ipaddress.ip_network((mapped, network.prefixlen - 96))
    return network
