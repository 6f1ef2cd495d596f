"""The address of a server: its host and port, its socket, and whether other machines can reach it. Needs no extra."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

from leasemill.errors import Invalid, Refused

BACKLOG: Final = 2_048
SEND_BYTES: Final = 256 * 1024
"""The bytes that the system keeps for a client that does not read its answers; by default it keeps megabytes."""


def is_loopback(address: str) -> bool:
    """Return True if no other machine can reach what listens there."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


def listen_address(listen: str) -> tuple[str, int]:
    """`HOST:PORT`; an IPv6 address is in brackets."""
    host, separator, port = listen.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65_535:
        raise Invalid(f"--listen {listen} is not an address: write HOST:PORT, for example 127.0.0.1:7411 or [::1]:7411")
    return host.strip("[]"), int(port)


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on this address. Its protocol is named: asyncio sends small packets at once only then."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)  # those it accepts inherit it
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        why = error.strerror or error
        raise Refused(f"cannot listen on {host}:{port}: {why}; choose another with --listen") from None
    return listening
