"""The suites of the server's dialects, by the official SDKs and by hand, with a router between client and server."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GATEWAY = "tests/gateway"
OPENAI, ANTHROPIC = f"{GATEWAY}/openai", f"{GATEWAY}/anthropic"
# What cannot be the same, and why: file -> tests. One that is listed and passes fails the test below.
DIFFERENT = {
    # `/detokenize`, which the router does not have, and what happens inside a server.
    f"{OPENAI}/completions/test_tokenize.py": {
        "test_there_and_back",
        "test_a_bad_field_is_named",
        "test_ids_that_no_token_has_are_replaced",
        "test_large_bodies_are_read_and_answered_off_the_loop",
    },
    f"{OPENAI}/responses/test_bounds.py": {
        "test_a_response_is_read_once_for_all_its_items",
        "test_a_page_of_many_items_is_made_in_a_thread",
    },
    f"{OPENAI}/responses/test_routes.py": {
        "test_input_items",
        "test_cancelling_a_stream",
        "test_retrieve_and_delete",  # the router has forgotten what was deleted, and says so in its own words
        "test_responses_belong_to_the_key_that_made_them",  # keys of clients are the router's
    },
    f"{OPENAI}/responses/test_errors.py": {
        "test_lookups_are_checked",
        "test_a_finished_response_cannot_be_cancelled",
        "test_a_failing_engine",  # 503 once no other backend can answer either
        "test_refused_by_name",  # an image: the router puts a line in its place
    },
    # Names of models are the router's.
    f"{OPENAI}/chat/test_fields.py": {"test_another_model_is_404"},
    f"{OPENAI}/test_models.py": {
        "test_both_clients_list_and_find_the_model_and_its_alias",
        "test_a_model_that_is_called_claude_needs_no_alias",
        "test_pages",
        "test_what_is_simulated_says_so",  # reads the server's metrics and readiness
    },
    f"{ANTHROPIC}/test_errors.py": {
        "test_names_of_other_models",
        # Limits, keys and waiting are the router's, and so are errors of a backend that is the only one.
        "test_what_is_refused_before_a_route",
        "test_keys",
        "test_a_head_that_is_refused",
        "test_an_engine_that_is_busy_or_restarting",
        "test_an_engine_that_fails",
        "test_pings_in_silence",
        "test_an_error_after_a_ping_is_an_event",
    },
    f"{ANTHROPIC}/test_history.py": {
        "test_new_fields_and_versions_are_counted_and_logged_once",  # reads the server's metrics
        "test_names_of_new_fields_may_be_anything",  # a body that is not UTF-8
    },
}
# An error behind the first content: whether the client has seen that content when it comes is a matter of milliseconds.
EITHER = {(f"{ANTHROPIC}/test_errors.py", "test_an_error_event_is_an_error_of_the_sdk")}
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py)::(\w+)", re.MULTILINE)
COUNTS = re.compile(r"(\d+) failed, (\d+) passed")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_suites_of_the_dialects_pass_through_the_router():
    environ = {**os.environ, "EYAS_TEST_ROUTER": "1"}
    environ.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", OPENAI, ANTHROPIC]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    failed = set(FAILED.findall(done.stdout))
    expected = {(file, test) for file, tests in DIFFERENT.items() for test in tests}
    print("\n", COUNTS.search(done.stdout))
    assert not failed - expected - EITHER, (sorted(failed - expected), done.stdout[-4000:])
    assert not expected - failed, ("these pass, so that they need not be listed", sorted(expected - failed))
    counts = COUNTS.search(done.stdout)
    assert counts is not None and int(counts[2]) > 550, done.stdout[-4000:]
