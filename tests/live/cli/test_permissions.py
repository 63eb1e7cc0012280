"""
Programs for the roles of `jetsync permissions`, each with exactly the permissions of its role.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from typing import TYPE_CHECKING, Any

import attrs
import click.testing
import pytest

import jetsync
from helpers.role_programs import PROGRAMS, Use
from helpers.thorough import thorough_except
from helpers.waiting import eventually
from jetsync.cli._app import jetsync as app
from jetsync.cli._roles import ROLES
from jetsync.devserver import DevServer
from jetsync.values.subjects import overlap

if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATIONS = ("publish", "subscribe")

# What a program tries and can do without, so that its role does not allow it.
DOES_WITHOUT = (".CONSUMER.DELETE.", ".STREAM.NAMES")


ADMIN = {"user": "admin", "password": "x"}

# How an account uses the buckets and the work of another one.
IMPORTED = {
    "$JS.ACK.>": "$JS.ACK.>",
    "$KV.>": "hub.api.$KV.>",
    "$O.>": "$O.>",
}
EXPORTED = ("$JS.API.>", *IMPORTED)


class Refusals:
    """
    A plugin that notes the subjects that the server refuses.
    """

    def __init__(self):
        self.subjects = []

    @jetsync.hookimpl
    def jetsync_status(self, event):
        if event.kind is jetsync.StatusKind.PERMISSION_DENIED:
            self.subjects.append(event.subject)


def printed(arguments: str, *more: str) -> str:
    """
    Return what `jetsync permissions` prints.
    """
    words = ["permissions", *shlex.split(arguments), *more]
    done = click.testing.CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def block_of(arguments: str) -> dict[str, Any]:
    """
    Return the block for a user.
    """
    return json.loads(printed(arguments, "--json"))["permissions"]


SEVERAL = "kv-reader --watch --several", "$JS.API.CONSUMER.CREATE.KV_NAME.*"
"""A program, and a line that it needs on newer servers only."""


def lines_of(arguments: str) -> list[tuple[str, str]]:
    """
    Return the permissions for a user.
    """
    found = block_of(arguments)
    return [(each, subject) for each in OPERATIONS for subject in found[each]["allow"]]


def without(arguments: str, dropped: tuple[str, str]) -> dict[str, Any]:
    """
    Return the block for a user without one permission.
    """
    lines = [line for line in lines_of(arguments) if line != dropped]
    allowed = {each: [subject for one, subject in lines if one == each] for each in OPERATIONS}
    # An empty list would allow everything.
    return {each: {"allow": some} if some else {"deny": [">"]} for each, some in allowed.items()}


@attrs.frozen
class Server:
    """
    A server with a user for each program, and one for each program and each of its permissions.
    """

    url: str
    version: tuple[int, int]
    newer_acks: bool
    """Whether it uses the newer form of the subjects of acknowledgements."""

    def use(self, title: str, number: int | None = None) -> tuple[list[str], BaseException | None]:
        """
        Run a program, without one of the permissions if *number* is given.

        Returns:
            What the server has refused, and the error of the program.
        """
        program, refusals = PROGRAMS[title], Refusals()
        name = name_of(title, number)
        login = {"user": name, "password": "x", "request_timeout": 1, "plugins": [refusals]}
        with jetsync.connect(self.url, user="admin", password="x") as admin:
            program.prepare(admin.jetstream(), name)
            try:
                with jetsync.connect(self.url, **login) as client:
                    program.run(Use(client.jetstream(), name, admin.jetstream()))
                    client.flush()
            except Exception as error:  # noqa: BLE001 - its kind depends on the program.
                return refusals.subjects, error
        return refusals.subjects, None


def name_of(title: str, number: int | None) -> str:
    """
    Return the name of a user, and of what its program uses.
    """
    return f"P{[*PROGRAMS].index(title)}-{'all' if number is None else number}"


def arguments_of(title: str, number: int | None = None) -> str:
    """
    Return the arguments of `jetsync permissions` for a user.
    """
    return PROGRAMS[title].arguments.replace("NAME", name_of(title, number))


def users() -> Iterator[str]:
    """
    Yield the users, as they are written in the configuration of a server.
    """
    yield "{user: admin, password: x}"
    for title in PROGRAMS:
        block = printed(arguments_of(title))
        yield f'{{user: "{name_of(title, None)}", password: x, {block}}}'
        for number in range(len(lines_of(PROGRAMS[title].arguments))):
            arguments = arguments_of(title, number)
            block = without(arguments, lines_of(arguments)[number])
            name = name_of(title, number)
            yield f'{{user: "{name}", password: x, permissions: {json.dumps(block)}}}'


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("2.10.26", False), marks=pytest.mark.versions, id="2.10"),
        pytest.param((None, False), id="newest"),
        pytest.param((None, True), id="newer-acks"),
    ],
)
def server(request):
    """
    An old and a new server, and one that uses the newer form of the subjects of acknowledgements.
    """
    version, newer_acks = request.param
    config = "authorization { timeout: 30, users: [\n" + "\n".join(users()) + "\n] }\n"
    if newer_acks:
        config += "feature_flags { js_ack_fc_v2: true }\n"
    with DevServer(version, config=config) as running:
        with jetsync.connect(running.url, user="admin", password="x") as client:
            major, minor = map(int, client.server.version.split(".")[:2])
        yield Server(running.url, (major, minor), newer_acks)


class TestPrograms:
    @pytest.mark.parametrize("title", PROGRAMS)
    def test_a_program_needs_nothing_else(self, server, title):
        """
        A program works with the permissions of its role.
        """
        if server.version < PROGRAMS[title].needs:
            pytest.skip("this server cannot do it")
        refused, error = server.use(title)
        assert error is None
        assert [each for each in refused if not any(one in each for one in DOES_WITHOUT)] == []

    @pytest.mark.parametrize(
        "case",
        thorough_except(
            {
                f"{title}: {subject}": (title, number)
                for title, program in PROGRAMS.items()
                for number, (_, subject) in enumerate(lines_of(program.arguments))
            },
            "worker: $JS.ACK.NAME.billing.>",
            "worker: $JS.ACK.*.*.NAME.billing.>",
        ),
    )
    def test_a_program_needs_each_line(self, server, case):
        """
        Without one of the permissions, a program fails, or the server reports that it is needed.
        """
        title, number = case
        if server.version < PROGRAMS[title].needs:
            pytest.skip("this server cannot do it")
        _, subject = lines_of(PROGRAMS[title].arguments)[number]
        refused, error = server.use(title, number)
        _, dropped = lines_of(arguments_of(title, number))[number]
        is_needed = error is not None or any(overlap(each, dropped) for each in refused)
        if subject.startswith(("$JS.ACK.", "$JS.FC.")):
            assert is_needed is (server.newer_acks is subject.startswith(("$JS.ACK.*", "$JS.FC.*")))
        elif subject == "$JS.API.DIRECT.GET.OBJ_NAME" and server.version < (2, 11):
            # Such a server reads the data of objects with a consumer.
            assert error is None
        elif (title, subject) == SEVERAL and server.version < (2, 12):
            # Such a server gets one wildcard in place of several patterns.
            assert error is None
        else:
            assert is_needed

    def test_each_option_has_a_program(self):
        """
        There is a program for each role and each of its options. jetsync-spark tests its own.
        """
        shown = {}
        for program in PROGRAMS.values():
            role, *words = shlex.split(program.arguments)
            shown.setdefault(role, set()).update(word[2:] for word in words if word[:2] == "--")
        assert shown == {
            name: {option.name for option in role.options}
            for name, role in ROLES.items()
            if not name.startswith("spark-")
        }


class TestElsewhere:
    """
    A user who reaches JetStream in another domain or account.
    """

    TITLES = ("worker", "kv-reader --watch", "kv-writer", "object-writer", "direct-reader")

    def use(self, url, admin, **context):
        """
        Run the programs.
        """
        for number, title in enumerate(self.TITLES):
            program, name = PROGRAMS[title], f"E{number}"
            program.prepare(admin, name)
            refusals = Refusals()
            login = {"user": name, "password": "x", "plugins": [refusals]}
            with jetsync.connect(url, **login) as client:
                program.run(Use(client.jetstream(**context), name, admin))
                client.flush()
            refused = [each for each in refusals.subjects if ".CONSUMER.DELETE." not in each]
            assert (title, refused) == (title, [])

    def users(self, *options):
        """
        Return the users of these programs.
        """
        for number, title in enumerate(self.TITLES):
            name = f"E{number}"
            words = PROGRAMS[title].arguments.replace("NAME", name)
            permissions = block_of(" ".join([words, *options]))
            yield {"user": name, "password": "x", "permissions": permissions}

    @pytest.mark.parametrize("newer_acks", [False, True])
    def test_a_domain(self, newer_acks):
        """
        The user of a leaf node reaches the domain of the hub.
        """
        flags = {"feature_flags": {"js_ack_fc_v2": True}} if newer_acks else {}
        hub_config = {"jetstream": {"domain": "hub"}, "leafnodes": {"port": -1}, **flags}
        with DevServer(config=hub_config) as hub:
            remote = f"nats-leaf://127.0.0.1:{hub.ports()['leafnodes']}"
            config = {
                "jetstream": {"domain": "leaf"},
                "leafnodes": {"remotes": [{"urls": [remote]}]},
                "authorization": {
                    "timeout": 30,
                    "users": [ADMIN, *self.users("--domain", "hub")],
                },
            }
            with DevServer(config=config) as leaf, jetsync.connect(hub.url) as client:
                with jetsync.connect(leaf.url, user="admin", password="x") as other:
                    eventually(lambda: reaches(other.jetstream(domain="hub")), 20)
                self.use(leaf.url, client.jetstream(), domain="hub")

    def test_another_account(self):
        """
        The user of an account that imports the JetStream of another one.
        """
        api = {"account": "HUB", "subject": "$JS.API.>"}
        config = {
            "accounts": {
                "HUB": {
                    "jetstream": "enabled",
                    "users": [ADMIN],
                    "exports": [{"service": each, "response_type": "stream"} for each in EXPORTED],
                },
                "SHOP": {
                    "users": [*self.users("--prefix", "hub.api")],
                    "imports": [
                        {"service": api, "to": "hub.api.>"},
                        *(
                            {"service": {"account": "HUB", "subject": each}, "to": to}
                            for each, to in IMPORTED.items()
                        ),
                    ],
                },
            }
        }
        with (
            DevServer(config=config) as server,
            jetsync.connect(server.url, user="admin", password="x") as admin,
        ):
            self.use(server.url, admin.jetstream(), prefix="hub.api")

    def test_a_server_of_the_domain(self):
        """
        On a server of the domain, the subjects without the domain are needed.
        """
        config = {
            "jetstream": {"domain": "hub"},
            "authorization": {
                "timeout": 30,
                "users": [ADMIN, *self.users()],
            },
        }
        with (
            DevServer(config=config) as server,
            jetsync.connect(server.url, user="admin", password="x") as admin,
        ):
            self.use(server.url, admin.jetstream(), domain="hub")


def reaches(js):
    """
    Return whether JetStream answers.
    """
    with contextlib.suppress(jetsync.JetSyncError):
        js.account_info(timeout=1)
        return True
    return False
