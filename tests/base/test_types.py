"""Text in requests that no encoding of Unicode can carry is refused where a request is made."""

import pytest

from eyas.base.errors import InvalidRequest
from eyas.base.types import Request, SamplingParams


@pytest.mark.parametrize(
    ("make", "param"),
    [
        (lambda text: Request(request_id="r", prompt_ids=(1,), cache_salt=text), "cache_salt"),
        (lambda text: SamplingParams(grammar=text), "grammar"),
    ],
    ids=["cache_salt", "grammar"],
)
def test_half_a_surrogate_pair_is_refused(make, param):
    make("start: \U0001f426")
    with pytest.raises(InvalidRequest, match=f"{param} has half a surrogate pair at position 2") as refused:
        make("a \ud800")
    assert refused.value.param == param
