"""The rules of what counts as a failure, where a status stands inside an error."""

import pytest

from eyas.base.serving.failures import is_mistake, status_of


@pytest.mark.parametrize(("error", "status", "mistake"), [
    ({"code": 400, "type": "exceed_context_size_error"}, 400, True),  # llama-server
    ({"code": 404, "type": "NotFoundError"}, 404, True),  # vLLM
    ({"code": "422"}, 422, True),
    ({"code": 429, "type": "invalid_request_error"}, 429, False),
    ({"code": 401, "type": "invalid_request_error"}, 401, False),
    ({"code": 500, "type": "InternalServerError"}, 500, False),
    ({"code": "context_length_exceeded", "type": "invalid_request_error"}, None, True),
    ({"code": "invalid_api_key", "type": "invalid_request_error"}, None, False),
    ({"code": None, "type": "BadRequestError"}, None, True),
    ({"code": True}, None, False), ({"code": 12}, None, False), ({"code": "\u0664\u0660\u0660x"}, None, False),
    ("text", None, False), ([], None, False),
])  # fmt: skip
def test_a_mistake_by_its_status_or_type(error, status, mistake):
    assert status_of(error) == status and is_mistake(error) == mistake
