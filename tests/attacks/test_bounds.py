"""Every bound on what one caller can do, and the test that proves it. Attacks (catalog.py) are one of each kind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
API, CONNECTION = "integration/api", "unit/api/test_connection.py"
BOUNDS = {
    # before a request is understood
    "a head, its headers, a URL": f"{CONNECTION}::large_headers_are_a_431_even_before_their_end",
    "a URL": f"{CONNECTION}::a_long_url_is_a_414",
    "trailers": f"{CONNECTION}::headers_after_a_chunked_body_are_bounded_too",
    "an extension of a chunk": f"{CONNECTION}::an_extension_of_a_chunk_is_bounded",
    "bytes that are no HTTP": f"{CONNECTION}::bytes_that_are_no_http_get_an_error_of_the_api",
    "a length with two readings": f"{CONNECTION}::a_body_whose_length_has_two_readings_gets_one_refusal",
    "the silence of a new connection": f"{CONNECTION}::a_connection_that_sends_nothing_is_closed",
    "the time of a head": f"{CONNECTION}::a_head_that_does_not_end_is_a_408_or_closed",
    "the time of a body": f"{CONNECTION}::a_body_that_does_not_end_is_a_408_and_the_app_sees_its_client_leave",
    "the time that a client may not read": f"{CONNECTION}::a_client_that_does_not_read_is_cut_off",
    "requests ahead of an answer": f"{CONNECTION}::what_comes_before_an_answer_is_dropped_and_the_connection_ends",
    "the names of the server": "unit/api/test_browsers.py::a_foreign_host_is_refused_and_told_the_setting",
    "the origins of WebSockets": "unit/api/test_browsers.py::a_websocket_follows_the_same_list_of_origins",
    "a body": f"{API}/test_refusals.py::a_chunked_body_that_is_too_large_is_a_413",
    "a compressed body": "unit/api/test_body.py::a_bomb_is_too_large_before_it_is_in_memory",
    "all half-sent bodies": f"{API}/test_request_memory.py::half_sent_bodies_beyond_the_budget_are_a_503",
    "the doors of Valkey": "integration/local/test_services.py::valkey_requires_its_password_which_is_in_no_argument",
    "forged messages": "integration/streaming/test_pubsub.py::forged_messages_are_counted_and_no_reader_notices",
    # what a body says
    "depth of JSON": "unit/protocol/requests/test_strict_json.py::deep_nesting_is_refused_without_recursion",
    "keys of an object": "unit/protocol/requests/test_strict_json.py::an_object_with_too_many_keys_is_refused",
    "values of a body": "unit/protocol/requests/test_strict_json.py::a_body_with_too_many_values_is_refused",
    "bytes that are no text": "unit/protocol/requests/test_strict_json.py::any_bytes_are_decoded_or_refused",
    "every array": "unit/protocol/requests/test_bounds.py::every_array_of_a_body_has_a_bound_that_its_schema_shows",
    "client_metadata": "unit/protocol/requests/test_fields.py::client_metadata_has_a_bound_in_bytes",
    "NUL in ids and queries": f"{API}/test_nul.py::u0000_in_an_id_or_a_query_is_refused",
    "stop tokens": "engine/test_bounds.py::stop_tokens_and_the_model_s_end_tokens_share_a_bound_under_min_tokens",
    "bad words": "engine/test_bounds.py::bad_words_have_a_bound_of_tokens",
    "images of a request": "unit/protocol/requests/test_images.py::a_request_has_at_most_so_many_images",
    "pixels": "unit/protocol/requests/test_images.py::the_largest_image_is_accepted",
    "time of a grammar": "engine/test_grammar_probe.py::every_kind_of_source_gets_its_verdict",
    "memory of a grammar": "engine/test_grammar_probe.py::a_grammar_that_takes_too_much_memory_is_refused",
    "grammars of a project": "engine/test_grammar_probe.py::a_project_has_one_job_at_a_time_and_leaves_the_other_place",
    "grammars that nobody waits for": "engine/test_grammar_probe.py::a_caller_who_leaves_ends_its_job",
    # files
    "a file": f"{API}/test_files.py::a_file_that_is_too_large_is_refused_by_its_head",
    "bytes of an upload": f"{API}/test_uploads.py::bad_fields_are_named",
    "memory of an upload": f"{API}/test_file_faults.py::an_upload_of_200_mb_takes_little_memory",
    "uploads at once": f"{API}/test_file_faults.py::the_uploads_of_one_project_leave_room_for_another",
    "the time of a file": f"{CONNECTION}::the_body_of_a_file_has_the_deadline_for_each_so_many_bytes_of_it",
    "time of a PDF": f"{API}/test_attachments.py::a_pdf_that_takes_too_long_ends_alone",
    "bytes of the files of a request": f"{API}/test_attachments.py::the_files_of_a_request_are_bounded_together",
    # what a prompt is made of
    "references": f"{API}/test_bounds.py::a_request_refers_to_a_bounded_number_of_items",
    "bytes of references": f"{API}/test_bounds.py::all_items_that_are_referred_to_count",
    "length of a chain": f"{API}/test_bounds.py::a_chain_has_a_bounded_length_and_can_still_be_compacted",
    "bytes of a chain": f"{API}/test_bounds.py::a_chain_has_bounded_bytes",
    "items of a conversation": f"{API}/test_bounds.py::items_that_come_at_once_keep_the_bound",
    "bytes of a conversation": f"{API}/test_bounds.py::a_conversation_has_bounded_bytes",
    "contexts in a worker": "integration/store/test_context_size.py::a_worker_refuses_to_read_more_than_it_may_hold",
    "a prompt": "engine/test_bounds.py::a_large_prompt_that_is_too_long_is_refused_before_all_of_it_has_become_tokens",
    "work of truncation": "unit/formats/test_truncation.py::a_search_renders_little_more_than_what_fits",
    "counts at once": "integration/celery_host/test_counts.py::a_project_whose_counts_hang_leaves_a_place_to_another",
    "tokens of a summary": f"{API}/test_limits.py::a_summary_is_reserved_beside_the_answer_and_ends_there",
    # number and timing
    "what readers hold": f"{API}/test_slow_readers.py::readers_that_never_read_hold_a_page_each",
    "readers of a project": f"{API}/test_shares.py::the_readers_of_one_project_leave_room_for_another",
    "reads at once": f"{API}/test_shares.py::reads_of_one_project_that_wait_for_their_turn_leave_turns_for_another",
    "connections of a project": f"{API}/test_shares.py::the_connections_of_one_project_leave_room",
    "WebSockets of a project": f"{API}/test_shares.py::the_websockets_of_one_project_leave_room_for_another",
    "responses of a WebSocket": f"{API}/test_websocket.py::the_active_responses_of_a_socket_are_limited",
    "what waits on a WebSocket": f"{API}/test_websocket.py::pending_requests_are_limited_by_number_and_by_size",
    "a frame": f"{API}/test_websocket.py::a_frame_beyond_twice_the_limit_closes_the_socket",
    "frames of no sense": f"{API}/test_websocket.py::a_bad_frame_gets_an_error_event_and_the_socket_goes_on",
    "pings": f"{CONNECTION}::control_frames_of_an_idle_websocket_do_not_count_as_bytes_of_bodies",
    "points of a log": f"{API}/test_resume.py::a_bad_query_is_refused_by_name",
    "one Idempotency-Key": f"{API}/test_idempotency.py::concurrent_requests_with_one_key_make_one_response",
    "clients that leave": f"{API}/test_leaving.py::a_hundred_clients_that_leave_at_once_cancel_a_hundred_responses",
    # one tenant on others
    "keys that are none": "unit/api/test_authentication.py::a_request_without_a_key_that_works_is_a_401",
    "keys that have ended": f"{API}/test_keys.py::a_revoked_key_is_refused",
    "guesses": "integration/access/test_directory.py::those_who_guess_keys_share_their_queries_and_are_forgotten",
    "bodies of strangers": f"{API}/test_keys.py::a_body_is_not_read_before_the_key_is",
    "things of others": f"{API}/test_tenants.py::another_project_s_thing_is_answered_like_one_that_is_not_there",
    "limits over a WebSocket": f"{API}/test_limits.py::a_websocket_s_request_is_refused_and_the_next_one_served",
    "limits by every way": f"{API}/test_limits.py::every_way_to_start_a_response_reserves_and_is_refused",
    "reads of a minute": f"{API}/test_charges.py::a_project_with_a_limit_on_reads_alone_reserves_nothing",
    "stored bytes": "integration/store/test_stored_bytes.py::many_at_once_store_not_one_byte_too_many",
    "usage of those who leave": f"{API}/test_leaving.py::leaving_early_evades_no_usage",
    "turns of the queue": "integration/test_fair_queue.py::one_request_passes_the_long_queue_of_another_project",
    "locks of a project": f"{API}/test_shares.py::cancels_and_deletions_of_locked_rows_keep_nobody_else_waiting",
    # with an admin key
    "values of limits": f"{API}/test_limits.py::a_limit_has_bounds",
    "service accounts": f"{API}/test_admin_api.py::their_number_is_bounded",
    "results of usage": f"{API}/test_admin_api.py::a_page_ends_before_it_has_too_many_results",
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_test_that_proves_a_bound_is_there(bound: str) -> None:
    """A name may be the beginning of a longer one."""
    file, _, name = BOUNDS[bound].partition("::")
    assert re.search(f"def test_{name}", (TESTS / file).read_text(encoding="utf-8"))
