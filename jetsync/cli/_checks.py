"""
What the commands of `jetsync check` share: thresholds, and results as monitoring systems read them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from jetsync.cli._connection import Command
from jetsync.cli._output import duration, print_json, say, visible, without_output
from jetsync.cli._prometheus import as_text
from jetsync.cli._suggestions import SuggestingGroup
from jetsync.cli._units import Decorator, combined, seconds_of
from jetsync.errors import (
    ConfigurationError,
    InvalidArgumentError,
    InvalidTypeError,
    JetSyncError,
    PermissionDeniedError,
)
from jetsync.monitoring import Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetsync.monitoring import Reading

METADATA: Final = "io.nats.monitor."
"""
Where the metadata of streams and consumers has thresholds. The `nats` command line reads the same
ones.
"""


class Level(enum.IntEnum):
    """
    The exit codes of monitoring systems.
    """

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


_WORST: Final = (Level.OK, Level.WARNING, Level.UNKNOWN, Level.CRITICAL)

STATUS: Final = Metric(
    name="jetsync.check.status",
    unit="1",
    description="0 is OK, 1 WARNING, 2 CRITICAL and 3 UNKNOWN.",
    labels=("check", "name"),
)
VALUE: Final = Metric(
    name="jetsync.check.value",
    unit="1",
    description="A value that the check compares, in seconds, bytes, percent or as a number.",
    labels=("check", "name", "value"),
)


@attrs.frozen
class Threshold:
    """
    A value with a limit for WARNING and one for CRITICAL, which are options of the command.
    """

    option: str
    """The options are `--OPTION-warn` and `--OPTION-critical`."""

    what: str
    """What is compared, as in `1,000 unprocessed messages`."""

    unit: str = ""
    """`s`, `%`, `B`, or nothing for a number."""

    below: bool = False
    """Whether a value below the limit is the problem. Otherwise the limit itself is one, too."""

    defaults: Mapping[str, float] = attrs.field(factory=dict)

    def names(self) -> Iterator[tuple[str, str]]:
        """
        Yield each level with the name of its option.
        """
        for level in ("warn", "critical"):
            yield level, f"{self.option}-{level}"

    def click_options(self) -> Iterator[Decorator]:
        """
        Yield the options of the command.
        """
        for level, name in self.names():
            word = {"warn": "WARNING", "critical": "CRITICAL"}[level]
            when = "below" if self.below else "from"
            default = self.defaults.get(level)
            ending = "" if default is None else f"  [default: {self.shown(default)}]"
            yield click.option(
                f"--{name}",
                type=self.parse,
                metavar={"s": "DURATION", "%": "PERCENT"}.get(self.unit, "N"),
                help=f"{word} {when} this limit: {self.what}.{ending}",
            )

    def parse(self, text: str) -> float:
        """
        Parse a limit.
        """
        if self.unit == "s":
            return seconds_of(text)
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < 2**63 or (not self.unit and number != int(number)):
            raise click.BadParameter(f"{text!r} is not a number from 0")
        return number

    def exceeded(self, value: float, limit: float) -> bool:
        """
        Return whether the value is a problem.
        """
        return value < limit if self.below else value >= limit

    def describe(self, value: float, limit: float) -> str:
        """
        Return the problem as text.
        """
        word = "below" if self.below else "limit"
        return f"{self.tell(value)} ({word} {self.shown(limit)})"

    def tell(self, value: float) -> str:
        """
        Return the value as a part of a sentence.
        """
        if self.unit == "s":
            return f"{self.what} {self.shown(value)}"
        return f"{self.shown(value)} {self.what}"

    def shown(self, value: float) -> str:
        """
        Return a value as text.
        """
        if self.unit == "s":
            return duration(float(f"{value:.3g}") if value < 10 else round(value))
        if self.unit == "%":
            return f"{value:.4g} %"
        return f"{value:,.0f}"


@attrs.define
class Result:
    """
    What a check found.
    """

    check: str
    name: str
    problems: list[tuple[Level, str]] = attrs.field(factory=list)
    values: dict[str, float] = attrs.field(factory=dict)
    performance: list[str] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)
    """What the line says if there is no problem."""

    samples: list[Sample] = attrs.field(factory=list)

    @property
    def level(self) -> Level:
        """
        The worst level. What is known to be critical counts more than what is not known.
        """
        return max((level for level, _ in self.problems), key=_WORST.index, default=Level.OK)

    def problem(self, level: Level, text: str) -> None:
        """
        Add a problem.
        """
        self.problems.append((level, text))

    def judge(
        self,
        thresholds: tuple[Threshold, ...],
        found: Mapping[str, float | None],
        limits: Mapping[str, float],
    ) -> None:
        """
        Compare values with their limits.

        Args:
            thresholds: What to compare.
            found: The values by the option of the threshold; None if a value is not known.
            limits: The limits by option and level.
        """
        for each in thresholds:
            if each.option not in found:
                continue
            value = found[each.option]
            own = {level: limits.get(name) for level, name in each.names()}
            if value is None:
                if any(limit is not None for limit in own.values()):
                    self.problem(Level.UNKNOWN, f"{each.what} is not known")
                continue
            self.add_value(each, value, own)
            for level, name in (("critical", Level.CRITICAL), ("warn", Level.WARNING)):
                limit = own.get(level)
                if limit is not None and each.exceeded(value, limit):
                    self.problem(name, each.describe(value, limit))
                    break
            else:
                self.notes.append(each.tell(value))

    def add_value(self, each: Threshold, value: float, limits: Mapping[str, float | None]) -> None:
        """
        Add a value to the performance data.
        """
        label = each.option.replace("-", "_")
        self.values[label] = value
        # A range of the form `10:` alerts below 10.
        end = ":" if each.below else ""
        shown = [
            "" if limit is None else f"{limit:.15g}{end}"
            for limit in (limits.get("warn"), limits.get("critical"))
        ]
        line = ";".join([f"{label}={round(value, 6):.15g}{each.unit}", *shown])
        self.performance.append(line.rstrip(";"))

    def line(self) -> str:
        """
        Return the line that monitoring systems show, with the performance data after a `|`.
        """
        ranked = sorted(self.problems, key=lambda each: -_WORST.index(each[0]))
        text = "; ".join(text for _, text in ranked) or ", ".join(self.notes) or "it answers"
        # A bar begins the performance data, and a name may have one.
        title = " ".join(filter(None, (self.level.name, self.check, self.name)))
        shown = visible(f"{title}: {text}").replace("|", "/")
        return f"{shown} | {' '.join(self.performance)}" if self.performance else shown

    def as_json(self) -> dict[str, Any]:
        """
        Return the result for JSON.
        """
        return {
            "check": self.check,
            "name": self.name,
            "status": self.level.name,
            "exit": int(self.level),
            "problems": [{"level": level.name, "text": text} for level, text in self.problems],
            "values": self.values,
        }

    def as_prometheus(self) -> str:
        """
        Return the result in the text format of Prometheus.
        """
        labels = {"check": self.check, "name": self.name}
        return as_text(
            [
                Sample(STATUS, labels, float(self.level)),
                *(Sample(VALUE, {**labels, "value": name}, n) for name, n in self.values.items()),
                *self.samples,
            ]
        )


def options_of(thresholds: tuple[Threshold, ...]) -> Decorator:
    """
    Return a decorator that adds the options of thresholds.
    """
    return combined(*(option for each in thresholds for option in each.click_options()))


def limits_of(
    thresholds: tuple[Threshold, ...],
    given: Mapping[str, Any],
    metadata: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """
    Return the limits by the names of their options: from the command line, from the metadata of the
    stream or consumer, or the defaults.
    """
    found = {}
    for each in thresholds:
        for level, name in each.names():
            limit = given.get(name.replace("-", "_"))
            text = (metadata or {}).get(METADATA + name)
            if limit is None and text is not None:
                try:
                    limit = each.parse(text)
                except click.BadParameter as error:
                    raise ConfigurationError(
                        f"metadata {METADATA}{name}: {error.message}"
                    ) from None
            if limit is None:
                limit = each.defaults.get(level)
            if limit is not None:
                found[name] = limit
    return found


def level_of(error: BaseException) -> Level:
    """
    Return the level of an error: CRITICAL if the server is to blame, UNKNOWN if the call is.
    """
    blameless = (
        PermissionDeniedError,
        ConfigurationError,
        InvalidArgumentError,
        InvalidTypeError,
    )
    if isinstance(error, JetSyncError) and not isinstance(error, blameless):
        return Level.CRITICAL
    return Level.UNKNOWN


def check_of(reading: Reading) -> None:
    """
    Raise the error of a reading, if there is one.
    """
    errors = [reading.error, *(each.error for each in reading.streams)]
    for error in errors:
        if error is not None:
            raise error


class CheckCommand(Command):
    """
    A command whose function returns a :class:`Result`. It prints the result, and exits with its
    code. Errors are results, too.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params = [
            *self.params,
            click.Option(["--json", "as_json"], is_flag=True, help="Print JSON."),
            click.Option(
                ["--prometheus"], is_flag=True, help="Print the text format of Prometheus."
            ),
        ]

    def invoke(self, ctx: click.Context) -> Any:
        """
        Run the check, print the result and exit.
        """
        as_json, prometheus = ctx.params.pop("as_json"), ctx.params.pop("prometheus")
        names = [
            str(ctx.params[each.name])
            for each in self.params
            if isinstance(each, click.Argument) and each.name in ctx.params
        ]
        result = Result(str(self.name), "/".join(names))
        try:
            if as_json and prometheus:
                raise click.UsageError("Give one of --json and --prometheus.")
            result = super().invoke(ctx)
            text = result.as_prometheus() if prometheus else ""
        except (JetSyncError, click.ClickException, KeyboardInterrupt) as error:
            result.problem(level_of(error), reason_of(error))
            prometheus = False
        except click.exceptions.Exit:
            raise
        except Exception as error:  # noqa: BLE001 - Python's exit code for it is that of WARNING.
            result.problem(Level.UNKNOWN, f"{type(error).__name__}: {error}")
            prometheus = False
        if prometheus:
            say(text.rstrip("\n"), lines=True)
        elif as_json:
            print_json(result.as_json())
        else:
            say(result.line())
        ctx.exit(int(result.level))


class CheckGroup(SuggestingGroup):
    """
    A group of such commands. Wrong arguments are UNKNOWN, because click's code for them is that of
    CRITICAL.
    """

    command_class = CheckCommand

    def invoke(self, ctx: click.Context) -> Any:
        """
        Run a command of the group.
        """
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            say(f"UNKNOWN {reason_of(error)}")
            # The attribute is declared as final.
            vars(error)["exit_code"] = int(Level.UNKNOWN)
            raise
        except OSError as error:
            # Also of a closed pipe: the exit codes of Python and click are that of WARNING.
            without_output()
            text = f"the result cannot be printed: {error.strerror or error}"
            failed = click.ClickException(text)
            vars(failed)["exit_code"] = int(Level.UNKNOWN)
            raise failed from error


def reason_of(error: BaseException) -> str:
    """
    Return the text of an error on one line.
    """
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    return " ".join(text.split()) or "interrupted"
