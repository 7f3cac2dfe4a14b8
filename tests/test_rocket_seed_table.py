"""Which test holds which statement of the seeds about RocketMQ's store, or where ours differs.

A row of `ROWS` is a statement's number, the tests that hold it (a part of the file's name, then the
test's), and behind a bar what is different here, or only said. The tests have to be there; the rows
about replication, polling and balancing belong to what is not built yet.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

COUNTS = {"DIR": 8, "CL": 15, "MSG": 28, "WR": 5, "CQ": 18, "DSP": 6, "IDX": 35, "CKP": 6,
          "REC": 15, "FLS": 11, "MEM": 6, "TSP": 8, "CLN": 7, "DEC": 11}  # fmt: skip
ROWS = """
DIR-01 rocket_store.a_store_has_the_files_that_a_broker_expects | the root is always said, never guessed
DIR-02 rocket_store.a_store_has_the_files_that_a_broker_expects
DIR-03 rocket_store.a_store_has_the_files_that_a_broker_expects
DIR-04 rocket_store.a_store_has_the_files_that_a_broker_expects
DIR-05 rocket_broker_config.topics_and_their_version, rocket_broker_config.consumer_offsets_are_kept_by_topic_group_and_queue
DIR-06 rocket_info.info_tells_a_crash_from_a_store_that_runs, rocket_store.a_disk_that_breaks_at_close_leaves_the_abort_file
DIR-07 rocket_store.the_checkpoint_of_a_closed_store_is_that_of_its_last_message
DIR-08 rocket_store.what_is_put_is_pulled_and_found_by_key | no replication yet
CL-01 rocket_seed_rows.all_topics_share_one_log_in_the_order_of_the_puts
CL-02 rocket_seed_rows.what_was_written_is_never_changed
CL-03 rocket_seed_rows.many_producers_leave_no_gap_and_no_repeat
CL-04 rocket_seed_rows.a_file_has_one_gibibyte_by_default_and_its_full_size_from_the_start
CL-05 rocket_seed_rows.a_file_has_one_gibibyte_by_default_and_its_full_size_from_the_start
CL-06 rocket_seed_rows.names_are_the_offset_of_the_first_byte_in_twenty_digits
CL-07 rocket_seed_rows.names_are_the_offset_of_the_first_byte_in_twenty_digits
CL-08 rocket_seed_rows.names_are_the_offset_of_the_first_byte_in_twenty_digits
CL-09 rocket_seed_rows.the_file_of_an_offset_is_found_by_division
CL-10 rocket_seed_rows.the_file_of_an_offset_is_found_by_division, rocket_recovery.a_missing_file_in_the_middle_is_damage_and_no_end
CL-11 rocket_seed_rows.all_topics_share_one_log_in_the_order_of_the_puts, rocket_store_reads.a_message_is_found_by_its_id
CL-12 rocket_seed_rows.all_topics_share_one_log_in_the_order_of_the_puts
CL-13 rocket_seed_rows.neighbours_lie_as_far_apart_as_the_first_is_long_but_for_the_filler
CL-14 rocket_seed_rows.neighbours_lie_as_far_apart_as_the_first_is_long_but_for_the_filler
CL-15 rocket_commit_log.a_record_may_end_eight_bytes_before_the_end_of_the_file, rocket_commit_log.one_byte_more_goes_to_the_next_file_behind_a_blank
MSG-01 rocket_seed_rows.the_fixed_part_of_a_record_takes_91_bytes
MSG-02 rocket_codec.a_record_is_byte_for_byte_the_real_one
MSG-03 rocket_codec.a_walk_finds_every_record
MSG-04 rocket_seed_rows.the_fixed_part_of_a_record_takes_91_bytes, rocket_codec.a_walk_ends_at_a_blank_and_says_what_is_missing_of_a_record
MSG-05 rocket_seed_rows.the_fixed_part_of_a_record_takes_91_bytes | daa320a7, as RocketMQ; BoltMQ's is read by decode and convert
MSG-06 rocket_seed_rows.the_checksum_is_the_bodys | 31 bits, as RocketMQ
MSG-07 rocket_seed_rows.every_field_stands_at_its_place
MSG-08 rocket_seed_rows.every_field_stands_at_its_place
MSG-09 rocket_seed_rows.a_unit_at_twenty_times_the_queue_offset_points_to_the_record
MSG-10 rocket_commit_log.prepared_and_rolled_back_messages_take_no_queue_offset | 0 stands there, as in 4.9.3
MSG-11 rocket_seed_rows.every_field_stands_at_its_place
MSG-12 rocket_seed_rows.every_field_stands_at_its_place
MSG-13 rocket_codec.every_system_flag_of_the_caller_is_kept
MSG-14 rocket_codec.every_system_flag_of_the_caller_is_kept, rocket_selection.compressed_bodies_are_unpacked_when_asked
MSG-15 rocket_codec.every_system_flag_of_the_caller_is_kept
MSG-16 rocket_commit_log.prepared_and_rolled_back_messages_take_no_queue_offset
MSG-17 rocket_seed_rows.every_field_stands_at_its_place
MSG-18 rocket_decode.dec_06_hosts_are_decoded_number_by_number, rocket_codec.a_record_with_ipv6_hosts_is_byte_for_byte_the_real_one
MSG-19 rocket_seed_rows.store_times_never_go_back_along_the_log
MSG-20 rocket_codec.a_record_is_byte_for_byte_the_real_one
MSG-21 rocket_seed_rows.every_field_stands_at_its_place | 4 bytes, as both codes
MSG-22 rocket_retry.a_failed_message_comes_again_in_the_group_s_retry_topic, rocket_retry.the_prefixes_are_in_capitals
MSG-23 rocket_seed_rows.every_field_stands_at_its_place
MSG-24 rocket_seed_rows.bodies_of_all_sizes_come_back
MSG-25 rocket_codec.a_topic_above_127_bytes_is_refused_where_it_cannot_be_read
MSG-26 rocket_codec.what_no_record_can_hold_is_refused
MSG-27 rocket_seed_rows.property_texts_have_two_invisible_separators
MSG-28 rocket_seed_rows.a_refused_message_leaves_no_gap, rocket_codec.a_name_with_the_separator_in_it_is_refused_in_columns_too
WR-01 rocket_mmap_file.a_new_file_is_mapped_and_full_size_before_a_message_is_in_it | the default writes by position (D10)
WR-02 rocket_seed_more.what_was_put_comes_to_stable_storage_later
WR-03 rocket_seed_more.a_read_by_offset_and_size_has_the_bytes_or_misses_cleanly | of a live file by position, of a full one through a map
WR-04 rocket_seed_more.puts_are_written_one_behind_the_other | the rate is the laboratory's business
WR-05 bench.both_ways_of_writing_the_log_are_measured_side_by_side | with ours a map is not the faster one: bench/README.md
CQ-01 rocket_seed_more.queues_hold_no_content
CQ-02 rocket_store.a_store_has_the_files_that_a_broker_expects
CQ-03 rocket_consume_queue.units_roll_into_the_next_file_and_are_read_over_the_border
CQ-04 rocket_consume_queue_units.a_unit_has_the_bytes_of_the_real_one
CQ-05 rocket_seed_rows.a_unit_at_twenty_times_the_queue_offset_points_to_the_record
CQ-06 rocket_seed_rows.a_unit_at_twenty_times_the_queue_offset_points_to_the_record
CQ-07 rocket_consume_queue_units.a_unit_has_the_bytes_of_the_real_one, rocket_decode.dec_10_a_unit_is_offset_size_and_tag_hash_in_twenty_bytes
CQ-08 rocket_formats.the_defaults_are_rocketmq_s
CQ-09 rocket_formats.the_defaults_are_rocketmq_s
CQ-10 rocket_formats.a_queue_file_holds_whole_units
CQ-11 rocket_seed_more.queue_files_of_1040_bytes_are_named_by_their_offset
CQ-12 rocket_seed_rows.a_unit_at_twenty_times_the_queue_offset_points_to_the_record
CQ-13 rocket_commit_log.queue_offsets_count_up_for_each_queue, crash/test_crash_stack.log_queues_index_and_shards_agree_in_every_crash_state
CQ-14 rocket_reads.pulls_answer_as_the_real_store_does | committing is the consumer's
CQ-15 rocket_broker_config.consumer_offsets_are_kept_by_topic_group_and_queue
CQ-16 rocket_reads.tags_are_compared_by_hash_as_in_the_real_store
CQ-17 rocket_reads.pulls_answer_as_the_real_store_does
CQ-18 rocket_reads.pulls_answer_as_the_real_store_does
DSP-01 rocket_dispatch.readers_are_woken_when_their_message_is_there
DSP-02 rocket_dispatch.every_record_is_handed_over_once_and_in_order
DSP-03 rocket_dispatch.one_that_fails_does_not_stop_the_others | in batches; a structure that failed does not stop the others
DSP-04 rocket_store.what_is_put_is_pulled_and_found_by_key | built with the queues, as in every RocketMQ
DSP-05 rocket_dispatch.readers_are_woken_when_their_message_is_there | woken by the put and not every ms
DSP-06 rocket_dispatch.readers_are_woken_when_their_message_is_there | there are no held pull requests yet
IDX-01 rocket_reads.queries_find_each_message_with_the_key_once
IDX-02 rocket_index.names_rise_even_when_the_clock_does_not
IDX-03 rocket_index.the_default_file_is_sparse_and_has_the_real_size
IDX-04 rocket_index.the_sample_of_the_specification
IDX-05 rocket_index.the_sample_of_the_specification
IDX-06 rocket_index.the_sample_of_the_specification
IDX-07 rocket_index.the_sample_of_the_specification
IDX-08 rocket_index.the_sample_of_the_specification | used slots, as since 4.7.1
IDX-09 rocket_index.the_sample_of_the_specification | used + 1, as on disk
IDX-10 rocket_index.the_default_file_is_sparse_and_has_the_real_size
IDX-11 rocket_index.the_sample_of_the_specification
IDX-12 rocket_index.a_file_holds_one_item_less_than_its_number
IDX-13 rocket_index.the_sample_of_the_specification
IDX-14 rocket_index.the_sample_of_the_specification
IDX-15 rocket_index.the_index_of_a_real_log_has_the_bytes_of_the_real_index
IDX-16 rocket_index.batches_give_the_bytes_of_key_after_key
IDX-17 rocket_index.batches_give_the_bytes_of_key_after_key | whole batches of keys
IDX-18 rocket_index.the_sample_of_the_specification
IDX-19 rocket_seed_more.broken_links_of_the_index_end_a_search
IDX-20 rocket_index.the_index_of_a_real_log_has_the_bytes_of_the_real_index
IDX-21 rocket_index.the_sample_of_the_specification
IDX-22 rocket_index.batches_give_the_bytes_of_key_after_key
IDX-23 rocket_index.the_index_of_a_real_log_has_the_bytes_of_the_real_index
IDX-24 rocket_index.a_file_holds_one_item_less_than_its_number, rocket_index.a_search_goes_over_files_and_stops_before_the_window
IDX-25 rocket_codec.a_key_whose_hash_has_no_absolute_value_hashes_to_zero
IDX-26 rocket_reads.queries_by_hash_answer_as_the_real_store_does
IDX-27 rocket_commit_log.a_view_stays_valid_when_its_file_is_gone | references own maps: nothing is counted
IDX-28 rocket_index.equal_hashes_are_found_together_newest_first
IDX-29 rocket_index.a_search_goes_over_files_and_stops_before_the_window, rocket_reads.a_window_between_two_seconds_finds_its_message
IDX-30 rocket_seed_more.broken_links_of_the_index_end_a_search, rocket_seed_more.a_search_by_hash_ends_at_an_item_s_time_and_one_by_text_goes_on
IDX-31 rocket_seed_more.a_query_gives_the_newest_32_if_not_asked_for_more
IDX-32 rocket_index.batches_give_the_bytes_of_key_after_key
IDX-33 rocket_reads.queries_find_each_message_with_the_key_once, rocket_selection.two_keys_of_one_hash_are_told_apart
IDX-34 rocket_index.the_sample_of_the_specification | topic # key, as RocketMQ
IDX-35 rocket_selection.what_is_chosen_is_what_the_real_messages_say
CKP-01 rocket_seed_rows.the_checkpoint_has_4096_bytes_and_speaks_of_what_was_flushed | 40 bytes since 5.1.1
CKP-02 rocket_store.the_checkpoint_of_a_closed_store_is_that_of_its_last_message
CKP-03 rocket_store.the_checkpoint_of_a_closed_store_is_that_of_its_last_message
CKP-04 rocket_seed_more.the_index_time_is_that_of_what_the_index_has_on_stable_storage | with every flush, not when a file is full
CKP-05 rocket_seed_rows.the_checkpoint_has_4096_bytes_and_speaks_of_what_was_flushed
CKP-06 rocket_seed_more.what_is_newer_than_the_checkpoint_survives_if_it_was_flushed
REC-01 kill.log_queues_index_and_shards_have_it_exactly_once
REC-02 rocket_recovery.what_was_put_before_a_kill_is_there
REC-03 rocket_recovery.a_torn_record_is_cut_and_zeroed
REC-04 rocket_seed_more.what_is_newer_than_the_checkpoint_survives_if_it_was_flushed
REC-05 rocket_consume_queue_units.a_torn_write_is_cut_at_its_first_missing_unit
REC-06 rocket_recovery.upstream_recovery_cuts_at_the_first_bad_record | with recovery="upstream"; else good records behind damage stay (D7)
REC-07 rocket_recovery.units_behind_a_cut_do_not_come_back
REC-08 rocket_store.queues_that_somebody_removed_are_built_again
REC-09 rocket_recovery.a_clean_opening_reads_no_record | from our own marks, which tell more
REC-10 rocket_recovery.only_what_came_after_the_mark_is_verified_after_a_kill
REC-11 rocket_info.the_checkpoint_says_where_a_recovery_begins | what a broker's would do; ours begins at its marks
REC-12 rocket_info.the_checkpoint_says_where_a_recovery_begins
REC-13 rocket_recovery.upstream_recovery_cuts_at_the_first_bad_record, rocket_recovery.damage_with_sound_records_behind_it_stays_and_is_reported
REC-14 kill.log_queues_index_and_shards_have_it_exactly_once
REC-15 crash/test_crash_stack.log_queues_index_and_shards_agree_in_every_crash_state
FLS-01 rocket_flush.asynchronous_flushes_are_the_default, rocket_flush.a_synchronous_put_returns_when_its_sync_is_over
FLS-02 rocket_flush.a_synchronous_put_returns_when_its_sync_is_over
FLS-03 rocket_flush.many_who_wait_share_syncs
FLS-04 rocket_seed_more.a_synchronous_flush_costs_a_sync_and_an_asynchronous_none
FLS-05 rocket_flush.an_asynchronous_put_does_not_sync
FLS-06 rocket_flush.one_put_is_synced_after_the_thorough_interval
FLS-07 rocket_flush.asynchronous_flushes_are_the_default
FLS-08 rocket_seed_more.the_readme_says_what_may_be_lost_at_which_level
FLS-09 rocket_flush.a_queue_is_synced_when_two_page_borders_are_behind_it
FLS-10 rocket_flush.everything_is_synced_after_the_thorough_interval_of_the_queues
FLS-11 rocket_flush.a_queue_is_synced_when_two_page_borders_are_behind_it
MEM-01 rocket_commit_log.a_view_stays_valid_when_its_file_is_gone
MEM-02 bench.both_ways_of_writing_the_log_are_measured_side_by_side | there is no network to send files to
MEM-03 rocket_mmap_file.rocketmqs_own_name_chooses_it_and_pwrite_is_the_default | an option; the default is pwrite (D10)
MEM-04 rocket_mmap_file.a_file_is_mapped_until_it_is_full_and_on_stable_storage | the log's files, with the option
MEM-05 rocket_mmap_file.what_is_mapped_is_read_by_others_at_once
MEM-06 crash/test_crash_stack.the_same_holds_for_a_log_that_is_written_through_maps
TSP-01 rocket_transient_pool.it_is_off_by_default_and_with_synchronous_flushes
TSP-02 rocket_seed_more.without_a_pool_others_see_a_put_at_once, rocket_put_status.a_put_does_not_wait_behind_one_that_hangs_in_the_disk
TSP-03 rocket_transient_pool.a_put_goes_to_memory_and_the_file_is_unchanged | not locked in memory
TSP-04 rocket_transient_pool.commits_are_due_after_their_interval
TSP-05 rocket_transient_pool.what_is_committed_is_written_at_once_and_later_flushed
TSP-06 rocket_transient_pool.nobody_reads_what_is_not_committed
TSP-07 rocket_transient_pool.what_is_committed_is_written_at_once_and_later_flushed
TSP-08 rocket_transient_pool.a_killed_process_loses_what_was_not_committed_and_nothing_else
CLN-01 rocket_cleaning.queues_and_index_follow_the_log | after 60 s, then every 10 s, as RocketMQ
CLN-02 rocket_cleaning.by_hand_the_next_twenty_rounds_delete_at_any_hour
CLN-03 rocket_cleaning.expired_files_go_in_the_hour_and_at_no_other
CLN-04 rocket_cleaning.expired_files_go_at_any_hour_when_a_disk_is_fuller_than_its_ratio
CLN-05 rocket_cleaning.above_the_hard_limit_young_files_go_too_but_ten_a_round_and_never_the_last
CLN-06 rocket_cleaning.above_the_warning_level_messages_are_refused_until_there_is_room_again
CLN-07 rocket_cleaning.queues_and_index_follow_the_log
DEC-01 rocket_decode.dec_01_the_decoder_runs_no_code_of_the_store
DEC-02 rocket_decode.dec_02_any_message_is_found_by_its_offset_in_any_file
DEC-03 rocket_decode.dec_03_any_unit_is_found_by_its_number_in_any_file
DEC-04 rocket_decode.dec_04_an_offset_is_eight_bytes_big_endian
DEC-05 rocket_decode.dec_05_widths_are_those_of_java
DEC-06 rocket_decode.dec_06_hosts_are_decoded_number_by_number
DEC-07 rocket_decode.dec_07_properties_are_split_at_the_two_invisible_characters
DEC-08 rocket_decode.dec_08_the_article_s_demo_is_printed_with_its_numbers
DEC-09 rocket_decode.dec_09_a_root_a_directory_and_a_file_of_it_are_taken
DEC-10 rocket_decode.dec_10_a_unit_is_offset_size_and_tag_hash_in_twenty_bytes
DEC-11 rocket_decode.dec_11_files_of_versions_before_and_after_are_decoded
"""  # noqa: E501
TABLE = [line.split(" ", 1) for line in ROWS.strip().splitlines()]
HERE = Path(__file__).parent


def test_every_statement_has_its_row_once() -> None:
    wanted = [f"{group}-{n:02d}" for group, count in COUNTS.items() for n in range(1, count + 1)]
    assert [row for row, _ in TABLE] == wanted


@pytest.mark.parametrize(("row", "said"), TABLE, ids=[row for row, _ in TABLE])
def test_the_tests_that_hold_a_statement_are_there(row: str, said: str) -> None:
    named, *difference = said.split(" | ")
    for one in named.split(", "):
        module, name = one.strip().split(".")
        path = HERE / (f"{module}.py" if "/" in module else f"test_{module}.py")
        assert re.search(rf"^def test_{name}\(", path.read_text(), re.M), f"{row}: {one}"
    assert len(difference) <= 1
