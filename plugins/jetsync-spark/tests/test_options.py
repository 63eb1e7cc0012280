import pickle
import traceback

import pytest

import jetsync
from jetsync_spark.common import clients
from jetsync_spark.common.errors import OptionError
from jetsync_spark.common.options import ConnectSettings, check_names, read_settings
from jetsync_spark.write.options import WriteOptions

SERVERS = {"servers": "nats://127.0.0.1:4222"}

SEED = "SU" + "A2BCDEFGHIJKLMNOPQRSTUVWXYZ7" * 2
"""Text that looks like the seed of an NKey."""


def settings(**options):
    """
    Read options in addition to the servers.
    """
    return read_settings(ConnectSettings, {**SERVERS, **options})


class TestRead:
    def test_names_are_taken_in_any_case(self):
        """
        Spark lower-cases names, so users may write them in any case.
        """
        assert settings(connecttimeoutms="1500") == settings(connectTimeoutMs="1500")
        assert settings(CONNECTTIMEOUTMS="1500").connect_timeout == 1.5

    def test_equal_options_are_one_key(self):
        """
        Clients are cached by their options, also after pickling.
        """
        one = settings(plugins="retry, otel")

        assert one.plugins == ("retry", "otel")
        assert hash(pickle.loads(pickle.dumps(one))) == hash(one)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"connectTimeoutMs": "soon"}, "connectTimeoutMs is 'soon'"),
            ({"connectTimeoutMs": "0"}, "give milliseconds, from 1 to"),
            ({"tlsFirst": "yes"}, "give true or false"),
            ({"passwordEnv": "X"}, "needs userEnv"),
            ({"servers": ""}, "option servers is empty"),
            ({"servers": "http://a:1"}, r"servers .* the scheme nats, tls, ws"),
        ],
    )
    def test_invalid_values_are_refused_by_name(self, options, said):
        """
        One sentence names the option and the accepted values.
        """
        with pytest.raises(OptionError, match=said):
            settings(**options)

    def test_servers_are_needed(self):
        """
        Executors cannot guess the servers of the driver.
        """
        with pytest.raises(OptionError, match="option servers is missing"):
            read_settings(ConnectSettings, {})


class TestNames:
    def test_an_unknown_option_is_named_with_similar_ones(self):
        """
        A misspelt option is refused, and its value is not shown.
        """
        with pytest.raises(OptionError, match="no option strem: did you mean stream") as caught:
            check_names({"strem": "hush"}, ConnectSettings, WriteOptions)

        assert "hush" not in str(caught.value)

    @pytest.mark.parametrize(
        ("option", "cure"),
        [
            ("kafka.bootstrap.servers", "give servers"),
            ("subscribePattern", "give stream, with a pattern"),
            ("startingOffsetsByTimestamp", "give startingTimestamp"),
            ("kafka.linger.ms", "leave it out"),
        ],
    )
    def test_an_option_of_kafka_is_refused_with_the_one_that_replaces_it(self, option, cure):
        """
        The error names the option to use instead, rather than all options or a similar name.
        """
        with pytest.raises(OptionError, match=f"no option {option}: .*{cure}"):
            check_names({option: "x"}, ConnectSettings, WriteOptions)

    def test_options_of_spark_are_accepted(self):
        """
        Sinks get the path of their checkpoint, tables their owner.
        """
        added = {"path": "/x", "checkpointlocation": "/y", "owner": "me", "option.servers": "z"}

        check_names({**SERVERS, **added}, ConnectSettings, WriteOptions)

    @pytest.mark.parametrize("name", ["password", "token", "nkeySeed", "credentials"])
    def test_secrets_are_not_taken(self, name):
        """
        Spark shows options in plans, so a secret must come from a file or a variable.
        """
        with pytest.raises(OptionError, match=f"option {name} would expose a secret") as caught:
            check_names({**SERVERS, name: "s3cret"}, ConnectSettings)

        assert "s3cret" not in str(caught.value)


class TestSecrets:
    @pytest.mark.parametrize("url", ["nats://me:s3cret@host:4222", "s3cret@host"])
    def test_servers_hold_none(self, url):
        """
        A password in a URL would be shown as well.
        """
        with pytest.raises(OptionError, match="userEnv and passwordEnv") as caught:
            settings(servers=url)

        assert "s3cret" not in str(caught.value)

    def test_variables_are_read_when_connecting(self, monkeypatch):
        """
        The settings contain names of variables, so no secret is sent to executors.
        """
        monkeypatch.setenv("MY_USER", "me")
        monkeypatch.setenv("MY_PASSWORD", "s3cret")
        made = settings(userEnv="MY_USER", passwordEnv="MY_PASSWORD")

        options = made.connect_options("a-name")

        assert (options.user, options.password, options.name) == ("me", "s3cret", "a-name")
        assert b"s3cret" not in pickle.dumps(made)
        assert "s3cret" not in repr(made)

    def test_a_variable_that_is_not_set_is_refused(self, monkeypatch):
        """
        The error says how to set a variable on an executor.
        """
        monkeypatch.delenv("MY_TOKEN", raising=False)

        with pytest.raises(
            OptionError, match=r"that it names .*for the executors before .*not by a command"
        ):
            settings(tokenEnv="MY_TOKEN").connect_options()

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("tokenEnv", "s3cr3t!tok"),
            ("tokenEnv", "s3cr3ttok"),
            ("nkeySeedEnv", SEED),
            ("nkeySeedFile", SEED),
            ("credsFile", "-----BEGIN NATS USER JWT-----\ns3cr3t\n------END NATS USER JWT------"),
            ("servers", "nats://host:4222?token=s3cr3t"),
            ("servers", "nats://host:4222;password=s3cr3t"),
            ("servers", "nats://host;password=s3cr3t"),
            ("servers", "nats://host:4222/s3cr3t"),
            ("servers", "nats://host:s3cr3t"),
            ("servers", "nats://host,s3cr3t://host"),
            ("servers", "nats://host/s3cr3t,ws://host"),
            ("tokenEnv", "HUNTER2S3CR3T"),
            ("nkeySeedEnv", "SUAM"),
            ("credsFile", "eyJ0eXAiOiJKV1QifQ.eyJqdGkiOiJ4In0.s3cr3t"),
            ("credsFile", "eyJ0eXAiOiJKV1QifQ." + "s3cr3t" * 100),
            ("nkeySeedFile", "~s3cr3t/x"),
            ("tlsCaFile", "s3cr3t"),
        ],
    )
    def test_one_in_the_wrong_place_is_not_shown(self, option, value):
        """
        Text that is not a name of a variable or a path may be the secret itself.
        """
        with pytest.raises(OptionError, match=f"option {option}") as caught:
            settings(**{option: value}).connect_options()

        shown = "".join(traceback.format_exception(caught.value))
        assert value not in shown
        assert "s3cr3t" not in shown.lower()

    def test_the_parameters_of_urls_are_not_shown(self):
        """
        They are hidden even if a program passed them and the connection fails.
        """
        options = jetsync.ConnectOptions(servers="nats://127.0.0.1:1?token=s3cr3t")

        assert "s3cr3t" not in clients._shown(options)

    def test_a_missing_file_is_refused(self, tmp_path):
        """
        The file must exist on every node.
        """
        with pytest.raises(OptionError, match="credsFile: there is no file of that"):
            settings(credsFile=str(tmp_path / "gone.creds")).connect_options()


class TestWriteOptions:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({}, "option stream is missing"),
            ({"mode": "once"}, "mode is 'once': give atleastonce or atomic or exactlyonce"),
            ({"writeId": "w"}, "writeId is for mode exactlyonce"),
            ({"mode": "atomic", "ledgerSubject": "l"}, "ledgerSubject is for mode exactlyonce"),
            ({"mode": "atomic", "fastIngest": "true"}, "fastIngest does not apply to mode atomic"),
            ({"chunkSize": "1001"}, "whole number from 2 to 1000"),
        ],
    )
    def test_contradictions_are_refused(self, options, said):
        """
        Contradictions are found before anything is sent.
        """
        stream = {} if "missing" in said else {"stream": "S"}
        with pytest.raises(OptionError, match=said):
            read_settings(WriteOptions, {**stream, **options})

    def test_errors_of_jetsync_spark_are_those_of_jetsync(self):
        """
        Errors of the plugin are caught as errors of jetsync.
        """
        with pytest.raises(jetsync.JetSyncError):
            WriteOptions(stream="S", mode="sometimes")
