import pickle

import pytest

from jetsync_spark.common.errors import OptionError
from jetsync_spark.common.options import ConnectSettings, check_names, read_settings
from jetsync_spark.read.options import LARGEST, ReadOptions


def options(**given):
    """Read these options."""
    return read_settings(ReadOptions, given)


class TestRead:
    def test_kafkas_names_are_taken_in_any_case(self):
        """Spark lower-cases the names of options."""
        asked = options(
            stream="S",
            startingoffsets='{"seq": 7}',
            maxoffsetspertrigger="100",
            minPartitions="4",
            maxRecordsPerPartition="5000",
            failondataloss="FALSE",
            includeHeaders="true",
            subjectFilter="a.*, b.>",
        )
        assert asked.starting_offsets == 7
        assert asked.max_offsets_per_trigger == 100
        assert (asked.min_partitions, asked.max_records_per_partition) == (4, 5000)
        assert asked.fail_on_data_loss is False
        assert asked.include_headers is True
        assert asked.subject_filter == ("a.*", "b.>")
        assert pickle.loads(pickle.dumps(asked)) == asked

    @pytest.mark.parametrize(
        ("given", "size"),
        [("1", 1), ("512k", 512 << 10), ("64M", 64 << 20), ("2 g", 2 << 30), ("1TiB", 1 << 40)],
    )
    def test_sizes_have_units_of_1024(self, given, size):
        """A size is a number of bytes, or has a unit as in Spark."""
        asked = options(stream="S", maxBytesPerTrigger=given, maxBytesPerPartition=given)
        assert asked.max_bytes_per_trigger == asked.max_bytes_per_partition == size

    @pytest.mark.parametrize("given", ["", "0", "-1", "1.5g", "g", "1x", "9000000t", "1 k b"])
    def test_invalid_sizes_are_refused(self, given):
        """The error names the option and shows examples of sizes."""
        with pytest.raises(OptionError, match=r"option maxBytesPerTrigger is .*512k, 64m or 1g"):
            options(stream="S", maxBytesPerTrigger=given)

    @pytest.mark.parametrize("place", ["earliest", "Latest", '{"seq":1}', f'{{"seq":{LARGEST}}}'])
    def test_a_position_is_a_word_or_a_sequence_of_64_bits(self, place):
        """A position is a word, or a sequence that fits into Spark's long."""
        assert options(stream="S", startingOffsets=place).starting_offsets is not None

    @pytest.mark.parametrize(
        "place",
        ["", "5", '{"seq": 0}', '{"seq": "5"}', '{"seq": true}', '{"S": {"0": 5}}', "[5]", "seq",
         f'{{"seq":{LARGEST + 1}}}', '{"seq": 5, "from": 1}', "{}", '{"S": 5}', '{"S": "now"}'],
    )  # fmt: skip
    def test_invalid_positions_are_refused(self, place):
        """The error names the option and shows an example of a position."""
        with pytest.raises(OptionError, match=r"option startingOffsets is .* \{\"seq\": 5\}"):
            options(stream="S", startingOffsets=place)

    def test_a_list_of_streams_has_names_and_patterns(self):
        """A list has names and patterns; positions are for all streams, or for each."""
        asked = options(
            stream="A, B_*,A",
            startingOffsets='{"A": {"seq": 5}, "B_1": "Latest", "B_2": "earliest"}',
            endingOffsets="latest",
        )
        assert asked.streams == ("A", "B_*")
        assert asked.patterns == ("B_*",)
        assert [asked.start_of(each) for each in ("A", "B_1", "B_2")] == [5, "latest", "earliest"]
        assert asked.end_of("A") == asked.end_of("B_7") == "latest"
        assert [*map(asked.names_stream, ["A", "B_", "B_1", "B", "XB_1"])] == [
            True, True, True, False, False,
        ]  # fmt: skip
        assert options(stream="seq", startingOffsets='{"seq": {"seq": 5}}').start_of("seq") == 5
        assert pickle.loads(pickle.dumps(asked)) == asked
        assert hash(asked)

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({}, "option stream is missing"),
            ({"stream": ", "}, "option stream is empty"),
            ({"stream": "ORDERS.*"}, r"the pattern 'ORDERS\.\*' matches no stream"),
            (
                {"stream": "A,B", "startingOffsets": '{"seq": 5}'},
                r'one sequence for several streams.*"A": \{"seq": 5\}',
            ),
            (
                {"stream": "A*", "endingOffsets": '{"seq": 5}'},
                "endingOffsets has one sequence for several streams",
            ),
            (
                {"stream": "A,B", "startingOffsets": '{"A": {"seq": 5}}'},
                "startingOffsets has no offset for stream B",
            ),
            (
                {"stream": "A,B*", "startingOffsets": '{"A": "latest", "C": "latest"}'},
                "startingOffsets has an offset for stream C, which is not read",
            ),
            ({"stream": "S", "bucket": "B"}, "both stream and bucket"),
            ({"stream": "S", "keys": "a"}, "option keys does not apply to a stream"),
            ({"stream": "S", "atRevision": "4"}, "atRevision does not apply to a stream"),
            ({"bucket": "B", "startingOffsets": "earliest"}, "startingOffsets does not apply to a"),
            (
                {"bucket": "B", "includeHeaders": "true"},
                "includeHeaders does not apply to a bucket",
            ),
            ({"bucket": "B", "includeLedger": "true"}, "includeLedger does not apply to a bucket"),
            ({"bucket": "B", "minPartitions": "2"}, "minPartitions does not apply to a bucket"),
            ({"bucket": "B", "atRevision": "4", "atTimestamp": "5"}, "both atRevision and"),
            ({"stream": "S", "minPartitions": "0"}, "minPartitions is '0'"),
            ({"stream": "S", "fetchBatch": "10001"}, "whole number from 1 to 10000"),
            ({"stream": "S", "failOnDataLoss": "maybe"}, "give true or false"),
            ({"stream": "S", "subjectFilter": "a.>,a b"}, r"subjectFilter: in 'a b' a token has"),
            ({"stream": "S", "subjectFilter": ">.x"}, "in '>.x' a token has a wildcard"),
            ({"stream": "S", "subjectFilter": "a..b"}, "in 'a..b' a token is empty"),
            ({"bucket": "B", "keys": "a,b>"}, "option keys: in 'b>' a token has a wildcard"),
            ({"stream": "S", "startingTimestamp": "-1"}, "startingTimestamp is '-1'"),
            ({"stream": "S", "startingOffsetsByTimestampStrategy": "now"}, "give error or latest"),
        ],
    )
    def test_invalid_options_are_refused(self, given, said):
        """One sentence names the option."""
        with pytest.raises(OptionError, match=said):
            options(**given)

    def test_unknown_ones_are_refused(self):
        """A reader does not accept options of a sink."""
        given = {"servers": "x", "stream": "S", "startingOffset": "earliest"}
        with pytest.raises(OptionError, match=r"startingOffset: did you mean startingOffsets"):
            check_names(given, ConnectSettings, ReadOptions)
        with pytest.raises(OptionError, match="no option ledgerSubject"):
            check_names({"ledgerSubject": "l"}, ConnectSettings, ReadOptions)


class TestUse:
    @pytest.mark.parametrize(
        ("given", "seconds"),
        [("250", 0.25), ("250ms", 0.25), ("10 s", 10), ("15m", 900), ("2H", 7200), ("1d", 86400)],
    )
    def test_a_time_has_a_unit(self, given, seconds):
        """A time is given as in Spark's own options: with a unit, or in milliseconds."""
        asked = options(stream="S", minOffsetsPerTrigger="5", maxTriggerDelay=given)
        assert asked.max_trigger_delay == seconds

    @pytest.mark.parametrize("given", ["", "soon", "-1s", "1.5s", "5 weeks"])
    def test_a_wrong_time(self, given):
        """Anything else is refused, with an example."""
        with pytest.raises(OptionError, match=r"maxTriggerDelay.*give a time such as 500ms"):
            options(stream="S", minOffsetsPerTrigger="5", maxTriggerDelay=given)

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"startingOffsets": "latest"}, "a batch from startingOffsets latest is empty"),
            ({"startingOffsets": '{"S": "latest"}'}, "from startingOffsets latest is empty"),
            ({"endingOffsets": "earliest"}, "a batch up to endingOffsets earliest is empty"),
            (
                {"startingOffsets": '{"S": {"seq": 9}}', "endingOffsets": '{"S": {"seq": 5}}'},
                "startingOffsets 9 is after endingOffsets 5",
            ),
            (
                {"startingOffsets": '{"seq": 9}', "endingOffsets": '{"seq": 5}'},
                "startingOffsets 9 is after endingOffsets 5",
            ),
            (
                {"startingTimestamp": "9", "endingTimestamp": "5"},
                r"startingTimestamp 1970-01-01 00:00:00\.009.* is after endingTimestamp 1970",
            ),
            ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger does not apply to a batch"),
        ],
    )
    def test_a_batch_refuses(self, given, said):
        """A batch refuses options of streaming, and ranges without a message."""
        with pytest.raises(OptionError, match=said):
            options(stream="S", **given).for_batch()

    def test_a_time_goes_before_an_offset(self):
        """A timestamp takes precedence over an offset, as in Kafka."""
        places = {"startingOffsets": '{"seq": 9}', "endingOffsets": '{"seq": 5}'}
        options(stream="S", startingTimestamp="5", **places).for_batch()
        options(stream="S", startingOffsets="latest", startingTimestamp="5").for_batch()

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"endingOffsets": "latest"}, "endingOffsets does not apply to streaming"),
            ({"endingTimestamp": "5"}, "endingTimestamp does not apply to streaming"),
            ({"maxTriggerDelay": "5s"}, "maxTriggerDelay applies only with minOffsetsPerTrigger"),
        ],
    )
    def test_streaming_refuses(self, given, said):
        """A streaming query has no end."""
        with pytest.raises(OptionError, match=said):
            options(stream="S", **given).for_streaming()

    def test_a_bucket_is_no_stream_of_rows(self):
        """The error names the stream of the bucket."""
        with pytest.raises(OptionError, match="readStream with stream KV_B"):
            options(bucket="B").for_streaming()


class TestConsumer:
    def test_a_consumer(self):
        """A consumer has a name, and a new one an ack wait."""
        asked = options(stream="S", consumer="worker", ackWait="90s", createConsumer="False")
        assert asked.consumer == "worker"
        assert asked.ack_wait == 90.0
        assert asked.create_consumer is False
        asked.for_streaming()
        assert pickle.loads(pickle.dumps(asked)) == asked

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"consumer": "a.b"}, "option consumer: 'a.b' is not the name"),
            ({"consumer": " "}, "option consumer is empty"),
            ({"stream": "A,B"}, "option consumer needs one stream, and stream is A,B"),
            ({"stream": "A*"}, "option consumer needs one stream"),
            ({"startingOffsets": "earliest"}, "startingOffsets does not apply .* server knows"),
            ({"startingTimestamp": "5"}, "startingTimestamp does not apply"),
            ({"endingOffsets": "latest"}, "endingOffsets does not apply"),
            ({"minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger does not apply"),
            ({"maxTriggerDelay": "5s"}, "maxTriggerDelay does not apply"),
            ({"maxBytesPerTrigger": "1m"}, "maxBytesPerTrigger does not apply .* the sizes"),
            ({"maxBytesPerPartition": "1m"}, "maxBytesPerPartition does not apply .* the sizes"),
            ({"ackWait": "500ms"}, "ackWait is 0.5 s: give at least 1s"),
            ({"ackWait": "soon"}, "option ackWait is 'soon'"),
        ],
    )
    def test_options_that_have_no_meaning(self, given, said):
        """With a consumer, options of other kinds of reading are refused."""
        with pytest.raises(OptionError, match=said):
            options(**{"stream": "S", "consumer": "worker", **given})

    @pytest.mark.parametrize("given", [{"ackWait": "30s"}, {"createConsumer": "true"}])
    def test_options_of_a_consumer_without_one(self, given):
        """Options of a consumer need a consumer."""
        with pytest.raises(OptionError, match="applies only with consumer"):
            options(stream="S", **given)

    def test_a_bucket_has_no_consumer(self):
        """A bucket cannot be read through a consumer."""
        with pytest.raises(OptionError, match="consumer does not apply to a bucket"):
            options(bucket="B", consumer="worker")

    def test_a_batch_has_no_consumer(self):
        """A batch read through a consumer is refused, and the error says what to do instead."""
        with pytest.raises(OptionError, match=r"cannot acknowledge.*availableNow=True"):
            options(stream="S", consumer="worker").for_batch()
