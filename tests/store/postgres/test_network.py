"""What both ends of a connection are given so that a network that drops packets is noticed."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from leasemill.store.postgres.driver.connections import Connections
from leasemill.store.postgres.driver.thread import ThreadDriver
from leasemill.store.postgres.driver.url import NETWORK, SERVER_NETWORK, network_parameters, parse_url, session_options
from leasemill.store.postgres.statements import Statements
from leasemill.testing.postgres import PostgresServer


def test_every_timeout_of_libpq_is_set() -> None:
    assert network_parameters("postgresql://h/db") == NETWORK
    assert NETWORK.keys() >= {"connect_timeout", "keepalives_idle", "tcp_user_timeout"}


def test_a_url_has_its_own_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    given = network_parameters("postgresql://h/db?connect_timeout=30&tcp_user_timeout=0")
    assert given == {name: NETWORK[name] for name in NETWORK.keys() - {"connect_timeout", "tcp_user_timeout"}}
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "20")
    assert "connect_timeout" not in network_parameters("postgresql://h/db")


def test_a_urls_own_session_options_win() -> None:
    options = session_options("postgresql:///db?options=-c%20tcp_user_timeout%3D7", SERVER_NETWORK)
    assert options.startswith("-c tcp_keepalives_idle=5")
    assert options.endswith("-c tcp_user_timeout=7")


@pytest.fixture(scope="module")
def tcp_url() -> Iterator[str]:
    with PostgresServer(settings={"fsync": "off"}) as server:
        yield server.url(tcp=True)


def test_the_server_too_notices_that_a_client_has_vanished(tcp_url: str) -> None:
    pool = Connections(*parse_url(tcp_url))
    driver = ThreadDriver(pool, Statements("leasemill"))

    def settings(connection: psycopg.Connection[tuple[object, ...]]) -> dict[str, object]:
        return {name: connection.execute(f"show {name}".encode()).fetchone() for name in SERVER_NETWORK}

    given = driver.with_connection(lambda connection: connection.info.get_parameters())
    assert given["tcp_user_timeout"] == "6000"
    assert driver.with_connection(settings) == {
        "tcp_keepalives_idle": ("5",), "tcp_keepalives_interval": ("2",), "tcp_keepalives_count": ("3",),
        "tcp_user_timeout": ("10000",),
    }  # fmt: skip
    pool.close(1)
