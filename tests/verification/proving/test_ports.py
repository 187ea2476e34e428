"""Ports of a server that starts later stay free until then."""

from __future__ import annotations

import socket

from verification.proving.ports import HeldPorts, _first_outgoing_port

APART = 10_000


def test_held_ports_are_free_and_differ() -> None:
    first, second = HeldPorts(40, apart=APART), HeldPorts(40, apart=APART)
    taken = [*first.ports, *second.ports]
    taken += [port + APART for port in taken]
    assert len({*taken}) == 160
    assert max(taken) < _first_outgoing_port(), "a connection could take one"
    for port in taken:
        with socket.create_server(("127.0.0.1", port)):
            pass
    first.close()
    second.close()


def test_a_port_of_another_server_is_not_held() -> None:
    for offset in (0, APART):
        held = HeldPorts(1, apart=APART)
        [port] = held.ports
        assert not held._hold(port), "it is held"
        held.close()
        with socket.create_server(("127.0.0.1", port + offset)):
            assert not held._hold(port, port + APART)
        assert held._hold(port, port + APART)
        held.close()
