"""Options are read by the names that people know, and refused with a sentence that helps."""

from __future__ import annotations

import pytest

from tubestore.errors import InvalidOption
from tubestore.record.layouts import key_code_of
from tubestore.spark.kit.options import LATEST, TABLE, ReadOptions, markdown


def parse(stream: bool = False, **given: str) -> ReadOptions:
    return ReadOptions.parse({"path": "/s", **given}, stream=stream)


def refused(stream: bool = False, **given: str) -> str:
    with pytest.raises(InvalidOption) as caught:
        parse(stream, **given)
    return str(caught.value)


def test_without_options_everything_is_read_in_splits_of_128_mib() -> None:
    options = parse()
    assert options.wants_topic("anything")
    assert options.partitions_of("anything") is None
    assert options.filter.is_empty
    assert options.max_split_bytes == 128 << 20
    assert (options.fail_on_corrupt, options.verify_crc, options.shape) == (
        True,
        False,
        "tubestore",
    )


def test_the_case_of_a_name_does_not_matter() -> None:
    assert parse(SUBSCRIBEPATTERN="o.*").wants_topic("orders")
    assert parse(subscribepattern="o").wants_topic("o")


def test_a_pattern_matches_a_whole_name() -> None:
    assert not parse(subscribePattern="o").wants_topic("orders")


def test_partitions_are_numbers_and_ranges() -> None:
    assert parse(partitions="0, 3,10-12").partitions_of("t") == {0, 3, 10, 11, 12}


def test_assign_is_read_as_kafka_writes_it() -> None:
    options = parse(assign='{"orders":[0,2]}')
    assert options.wants_topic("orders")
    assert not options.wants_topic("logs")
    assert options.partitions_of("orders") == {0, 2}


def test_offsets_are_read_as_kafka_writes_them() -> None:
    options = parse(startingOffsets='{"t":{"0":28,"1":-2}}', endingOffsets='{"t":{"0":-1}}')
    assert options.starting == {"t": {0: 28, 1: -2}}
    assert options.ending == {"t": {0: LATEST}}


def test_filter_items_become_their_codes() -> None:
    codes = {key_code_of("paid"), key_code_of("sent")}
    assert parse(filterItems="paid, sent").filter.key_codes == codes
    assert parse(keyCodes="-5,7").filter.key_codes == {-5, 7}


@pytest.mark.parametrize(
    ("text", "value"),
    [("1704067200000", 1704067200000), ("2024-01-01T01:00:00+01:00", 1704067200000)],
)
def test_a_time_is_ms_or_iso_with_a_zone(text: str, value: int) -> None:
    assert parse(startingTimestamp=text).filter.start_ms == value


@pytest.mark.parametrize("path", ["file:/s", "file:///s", "/s"])
def test_a_path_may_be_a_file_url(path: str) -> None:
    assert parse(path=path).path == "/s"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOfsets": "earliest"}, "option startingOfsets: not known; did you mean starting"),
        ({"nonsense": "1"}, "option nonsense: not known; there are path, schema"),
        ({"paths": '["a","b"]'}, "one path, not several"),
        ({"path": "s3a://bucket/s"}, "s3a is Hadoop's name: give s3://bucket/s"),
        ({"path": "S3N://bucket/s"}, "S3N is Hadoop's name: give s3://bucket/s"),
        (
            {"path": "dbfs:/mnt/s"},
            "dbfs:/mnt/s: only a directory that every node can see, or for a",
        ),
        ({"path": "http://x/s"}, "a copy in an object storage (s3://, gs://, gcs://, abfs://, "),
        ({"subscribe": "a", "subscribePattern": "b"}, "not together with subscribe"),
        ({"assign": '{"a":[0]}', "partitions": "0"}, "option partitions: not together with assign"),
        ({"keyCodes": "1", "filterItems": "a"}, "option keyCodes: not together with filterItems"),
        ({"subscribePattern": "("}, "a regular expression"),
        ({"subscribe": " , "}, "names separated by commas"),
        ({"partitions": "a-b"}, "numbers separated by commas"),
        ({"partitions": "5-3"}, "5-3 is not a range"),
        ({"assign": "orders"}, 'JSON such as {"orders":[0,1]}'),
        ({"assign": '{"orders":["x"]}'}, 'JSON such as {"orders":[0,1]}'),
        ({"startingOffsets": '{"t":5}'}, "JSON such as"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "JSON such as"),
        ({"startingOffsets": "latest"}, "a batch starts at earliest or offsets"),
        ({"endingOffsets": "earliest"}, "latest, or offsets as JSON"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "-2 (earliest) is not an end"),
        ({"startingTimestamp": "2024-01-01T00:00:00"}, "has no zone"),
        ({"startingTimestamp": "yesterday"}, "is not a valid time"),
        ({"maxSplitBytes": "12 parsecs"}, "a number of bytes, such as 128m"),
        ({"minPartitions": "0"}, "a whole number above 0"),
        ({"minPartitions": "9" * 5000}, "a whole number above 0 and below"),
        ({"failOnCorrupt": "yes"}, "true or false"),
        ({"schema": "avro"}, "tubestore or kafka"),
        ({"maxOffsetsPerTrigger": "10"}, "only a stream has it"),
        ({"minOffsetsPerTrigger": "10"}, "only a stream has it"),
        ({"startingOffsetsByTimestamp": '{"t":5}'}, "JSON such as"),
        ({"startingOffsetsByTimestamp": '{"t":{"0":"soon"}}'}, "times in ms or as texts"),
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":5}}', "startingOffsets": "earliest"},
            "not together with startingOffsets",
        ),
        (
            {"endingOffsetsByTimestamp": '{"t":{"0":5}}', "endingOffsets": "latest"},
            "not together with endingOffsets",
        ),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "error or latest"),
        (
            {"startingTimestamp": "1001", "endingTimestamp": "1000"},
            "option endingTimestamp: it is before startingTimestamp",
        ),
        (
            {"startingOffsets": '{"t":{"1":28}}', "endingOffsets": '{"u":{"1":0},"t":{"1":27}}'},
            "option endingOffsets: t partition 1 ends at 27, before it starts (28)",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"t":{"0":9}}',
                "endingOffsetsByTimestamp": '{"t":{"0":8}}',
            },
            "option endingOffsetsByTimestamp: t partition 0 ends at 8, before it starts (9)",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(given: dict[str, str], says: str) -> None:
    assert says in refused(**given)


def test_a_path_is_needed() -> None:
    with pytest.raises(InvalidOption, match="option path: missing"):
        ReadOptions.parse({})


def test_a_stream_has_limits_and_no_end() -> None:
    assert parse(True, maxOffsetsPerTrigger="10").max_rows_per_trigger == 10
    assert parse(True, startingOffsets="latest").starting == LATEST
    assert "a stream has no end" in refused(True, endingOffsets="latest")
    assert "a stream has no end" in refused(True, endingOffsetsByTimestamp='{"t":{"0":5}}')


def test_a_stream_waits_for_no_more_messages_than_a_batch_may_have() -> None:
    given = {"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"}
    assert "option minOffsetsPerTrigger: 11 is above maxOffsetsPerTrigger (10)" in refused(
        True, **given
    )
    assert parse(True, **{**given, "minOffsetsPerTrigger": "10"}).min_rows_per_trigger == 10


def test_an_empty_range_is_no_contradiction() -> None:
    same = '{"t":{"0":28,"1":-2}}'
    assert parse(startingOffsets=same, endingOffsets='{"t":{"0":28,"1":-1}}').ending
    assert parse(startingOffsets='{"t":{"0":28}}', endingOffsets="latest").ending == LATEST
    assert parse(startingTimestamp="1000", endingTimestamp="1000").filter.end_ms == 1000


def test_a_stream_of_a_copy_in_an_object_storage_is_refused_by_hadoops_name_too() -> None:
    assert "a stream needs a directory that every node can see" in refused(True, path="s3a://b/s")
    assert "a stream needs a directory that every node can see" in refused(True, path="s3://b/s")


def test_a_delay_is_a_number_with_a_unit() -> None:
    assert parse(True, maxTriggerDelay="30s").max_delay_ms == 30_000
    assert parse(True).max_delay_ms == 900_000
    assert "such as 30s or 15m" in refused(True, maxTriggerDelay="soon")


def test_a_time_of_a_partition_is_ms_or_iso() -> None:
    given = '{"t":{"0":5,"1":"1970-01-01T00:00:01Z"}}'
    assert parse(startingOffsetsByTimestamp=given).starting_times == {"t": {0: 5, 1: 1000}}


def test_the_documentation_has_every_option() -> None:
    table = markdown(TABLE)
    assert all(f"`{option.name}`" in table for option in TABLE)


def test_what_a_catalog_adds_to_the_options_of_a_table_is_no_error() -> None:
    added = {
        "location": "file:/x", "option.path": "/x", "option.subscribe": "logs", "owner": "root",
        "provider": "tubestore", "external": "true", "comment": "messages",
    }  # fmt: skip
    found = ReadOptions.parse({"path": "/x", "subscribe": "logs", **added})
    assert found == ReadOptions.parse({"path": "/x", "subscribe": "logs"})


def test_a_table_without_its_path_is_an_error_with_the_way_to_give_it() -> None:
    with pytest.raises(InvalidOption, match=r"WITH \(path = '…'\) behind its name.*PythonTable"):
        ReadOptions.parse({})
