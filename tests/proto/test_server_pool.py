from __future__ import annotations

import bisect
import random
from collections import Counter

import pytest

from jetsync._io.next_server import NextServer
from jetsync._proto.server_pool import ServerPool, Waits
from jetsync.options import ConnectOptions
from jetsync.values.server_info import PoolServer

A, B, C = (f"nats://{name}:4222" for name in "abc")


def lowest(low, high):
    """As random numbers go, the lowest one."""
    return low


def pool_of(*urls, most=-1, uniform=lowest, connected=True, **waits):
    """Return a pool whose first server is connected."""
    waits = {"first": 2.0, "longest": 10.0, "jitter": 2.0, **waits}
    pool = ServerPool(urls, Waits(**waits), most, uniform)
    if connected:
        pool.begin(pool.find_server(urls[0]))
        pool.connected(0.0)
    return pool


def attempts(pool, until, now):
    """Let all attempts fail until a moment; return their moments and URLs."""
    made = []
    while (found := pool.next_server(now)) is not None and found[1] <= until:
        server, due = found
        now = max(due, now)
        assert pool.begin(server)
        made.append((now, server.url))
        pool.ended(now, asked=False)
    return made


class TestWaits:
    def test_the_wait_doubles_up_to_the_longest(self):
        """The wait for a server doubles with each failure, up to the longest, plus the jitter."""
        pool = pool_of(A)
        pool.ended(100.0, asked=False)
        assert [moment for moment, _ in attempts(pool, 140.0, 100.0)] == [
            *(100, 102, 106, 114, 124, 134)
        ]
        late = pool_of(A, uniform=lambda low, high: high)
        late.ended(100.0, asked=False)
        assert [moment for moment, _ in attempts(late, 140.0, 100.0)] == [*(102, 106, 114, 130)]

    def test_a_first_wait_above_the_longest(self):
        """The first wait counts if it is longer than the longest one."""
        pool = pool_of(A, first=30.0)
        pool.ended(100.0, asked=False)
        assert [moment for moment, _ in attempts(pool, 170.0, 100.0)] == [100, 130, 160]

    def test_thousands_of_failures(self):
        """The wait stays a number after any number of failures."""
        pool = pool_of(A, first=0.001, longest=0.001, jitter=0.0)
        pool.ended(100.0, asked=False)
        assert len(attempts(pool, 102.0, 100.0)) == pytest.approx(2000, abs=2)

    def test_each_server_has_its_own_wait(self):
        """All servers are tried without a pause, and each is left alone after its failure."""
        pool = pool_of(A, B, C)
        pool.ended(100.0, asked=False)
        made = attempts(pool, 102.0, 100.0)
        assert [moment for moment, _ in made] == [100, 100, 100, 102, 102, 102]
        for begin in (0, 3):
            assert {url for _, url in made[begin : begin + 3]} == {A, B, C}
        # The lost server comes last.
        assert made[2][1] == A

    def test_the_lost_server_comes_last(self):
        """After a loss, the other servers are tried in random order, and then the lost one."""
        orders = set()
        for seed in range(20):
            pool = pool_of(A, B, C, uniform=random.Random(seed).uniform)
            pool.ended(100.0, asked=False)
            orders.add("".join(url[7] for _, url in attempts(pool, 200.0, 100.0)[:3]))
        assert orders == {"bca", "cba"}

    def test_a_connection_ends_the_waits(self):
        """After a connection, the first attempt is due at once, and the waits begin again."""
        pool = pool_of(A)
        pool.ended(100.0, asked=False)
        attempts(pool, 130.0, 100.0)
        pool.begin(pool.servers[0])
        pool.connected(140.0)
        assert pool.servers[0].attempts == 0
        pool.ended(200.0, asked=False)
        assert [moment for moment, _ in attempts(pool, 206.0, 200.0)] == [200, 202, 206]

    def test_a_server_that_ends_each_connection(self):
        """A server that accepts a connection and ends it at once is left alone, too."""
        pool = pool_of(A, jitter=0.0)
        pool.ended(0.5, asked=False)
        assert pool.next_server(0.5)[1] == 2.0

    @pytest.mark.parametrize("asked", [True, False])
    def test_an_asked_reconnect_is_not_spread(self, asked):
        """After a loss, the first attempt waits for a random time, unless it was asked for."""
        pool = pool_of(A, uniform=lambda low, high: high)
        pool.ended(100.0, asked=asked)
        assert pool.next_server(100.0)[1] == (0.0 if asked else 102.0) or asked
        assert pool.next_server(100.0)[1] <= (100.0 if asked else 102.0)

    def test_the_first_connect(self):
        """The first connect begins at once, and leaves each server alone for the same time."""
        pool = pool_of(A, connected=False, most=1, uniform=lambda low, high: high)
        assert [moment for moment, _ in attempts(pool, 6.0, 0.0)] == [0, 2, 4, 6]


class TestStorm:
    @pytest.mark.parametrize("servers", [1, 3])
    def test_clients_of_a_server_that_dies(self, servers):
        """
        Of 500 clients, at most a tenth of one round is tried in any 100 ms; after 10 s, the rate is
        at most half.
        """
        clients, moments = 500, []
        for seed in range(clients):
            options = ConnectOptions(servers=[A, B, C][:servers])
            pool = NextServer(None, options).pool
            pool._uniform = random.Random(seed).uniform
            pool.begin(pool.servers[0])
            pool.connected(0.0)
            pool.ended(100.0, asked=False)
            moments += [moment for moment, _ in attempts(pool, 140.0, 100.0)]
        moments.sort()
        most = max(
            bisect.bisect(moments, begin + 0.1) - index for index, begin in enumerate(moments)
        )
        assert most <= clients * servers / 10
        early, late = (
            sum(begin <= moment < begin + 10 for moment in moments) for begin in (100, 110)
        )
        assert 0 < late <= early / 2


class TestLimit:
    def test_each_server_has_so_many_attempts(self):
        """With a limit, each server has that many attempts, and then none may be tried."""
        pool = pool_of(A, B, most=2)
        pool.ended(100.0, asked=False)
        made = attempts(pool, 1000.0, 100.0)
        assert Counter(url for _, url in made) == {A: 2, B: 2}
        assert pool.next_server(1000.0) is None
        assert pool.eligible == []

    def test_a_connection_gives_all_servers_their_attempts_back(self):
        """The limit counts the attempts since the last connection."""
        pool = pool_of(A, B, most=2)
        pool.ended(100.0, asked=False)
        attempts(pool, 102.0, 100.0)
        pool.begin(pool.servers[0])
        pool.connected(103.0)
        assert [one.attempts for one in pool.servers] == [0, 0]


class TestServers:
    def test_announced_servers(self):
        """Announced servers get the scheme of the current one, each once, and are marked."""
        pool = pool_of("tls://a:4222", B)
        assert pool.announce(["a:4222", "b:4222", "c:1", "c:1", "10.0.0.1:4222"]) == [
            "tls://c:1",
            "tls://10.0.0.1:4222",
        ]
        assert pool.announce(["c:1"]) == []
        assert [one.url for one in pool.servers if one.is_discovered] == [
            "tls://c:1",
            "tls://10.0.0.1:4222",
        ]

    def test_the_certificate_of_an_announced_address(self):
        """An announced IP address may show a certificate for the host that announced it."""
        pool = pool_of(A)
        pool.announce(["b:1", "10.0.0.1:4222", "[::1]:4222"])
        assert {one.url: one.tls_name for one in pool.servers} == {
            A: None,
            "nats://b:1": None,
            "nats://10.0.0.1:4222": "a",
            "nats://[::1]:4222": "a",
        }
        pool.begin(pool.find_server("nats://10.0.0.1:4222"))
        pool.announce(["10.0.0.2:4222"])
        assert pool.servers[-1].tls_name == "a"

    def test_logins(self):
        """No login gets into the pool."""
        pool = pool_of("nats://u:p@a:4222", connected=False)
        assert [one.url for one in pool.servers] == [A]

    def test_replaced_servers(self):
        """The new servers replace all others; those that stay keep their waits and attempts."""
        pool = pool_of(A, B)
        pool.announce(["c:4222"])
        pool.ended(100.0, asked=False)
        attempts(pool, 100.0, 100.0)
        dropped = pool.find_server(B)
        pool.replace(["nats://u:p@c:4222", "nats://d:4222"])
        assert [one.public for one in pool.servers] == [
            PoolServer(url=C, attempts=1),
            PoolServer(url="nats://d:4222"),
        ]
        assert not pool.begin(dropped)
        assert pool.next_server(100.0)[0].url == "nats://d:4222"

    def test_nothing_is_announced_before_the_first_connection(self):
        """Without a current server, announcements are ignored."""
        assert pool_of(A, connected=False).announce(["b:1"]) == []
