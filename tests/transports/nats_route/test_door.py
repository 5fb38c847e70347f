"""The door by which other servers dial us, without any."""

from __future__ import annotations

import os
import socket

import pytest

from framework.transports.nats_route.door import Door


def test_a_listener_is_let_go_where_it_is_forgotten_and_its_number_stays_taken() -> None:
    """As in a forked child: whoever dials reaches the parent alone."""
    door = Door("127.0.0.1:0", lambda sock, address: None)
    socket.create_connection(door.address).close()
    address, number = door.address, door._listener.fileno()
    door.forget()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    os.fstat(number)
    door.close()
    door.forget()


def test_a_door_that_is_nowhere_is_neither_opened_nor_forgotten() -> None:
    door = Door("", lambda sock, address: None)
    door.open()
    assert (door.address, door._accepting) == (("127.0.0.1", 0), None)
    door.forget()
    door.close()


def test_a_door_that_is_closed_is_not_opened() -> None:
    door = Door("127.0.0.1:0", lambda sock, address: None)
    door.close()
    door.open()
    assert door._accepting is None
