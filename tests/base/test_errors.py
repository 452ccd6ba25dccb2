"""What errors for people say: the nearest name, and no more of what was sent than a screen holds."""

from eyas.base.errors import InvalidRequest, nearest


def test_long_messages_keep_their_beginning_and_end():
    sent = "x" * 10_000_000
    error = InvalidRequest(f"'messages[3]': unknown field '{sent}' (it ends here)", param=f"messages[3].{sent}")
    assert len(str(error)) == len(error.param) == 300
    assert str(error).startswith("'messages[3]': unknown field 'xxx") and str(error).endswith("xxx' (it ends here)")
    assert error.param.startswith("messages[3].xxx") and "[...]" in error.param
    again = InvalidRequest(str(error), param=error.param)
    assert (str(again), again.param) == (str(error), error.param)


def test_messages_of_a_usual_length_stay():
    assert str(InvalidRequest("y" * 300)) == "y" * 300


def test_the_nearest_name():
    assert nearest("temprature", ["top_p", "temperature"]) == " (did you mean 'temperature'?)"
    assert nearest("q", ["top_p", "temperature"]) == ""
    assert nearest("t" * 1_000_000, ["t" * 999_999]) == ""  # to compare them would take seconds
