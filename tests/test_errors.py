import pickle

from attnbench.errors import RequestError, did_you_mean, nearest


def test_a_request_error_reads_as_its_mistakes_each_once_and_in_order():
    error = RequestError(["b: too long", "a: missing", "b: too long"])
    assert error.mistakes == ["b: too long", "a: missing"]
    assert str(error) == "b: too long\na: missing"


def test_a_request_error_survives_the_way_between_processes():
    error = pickle.loads(pickle.dumps(RequestError(["a: missing", "b: too long"])))
    assert error.mistakes == ["a: missing", "b: too long"]


def test_the_nearest_name_is_found_whatever_its_capitals():
    assert nearest("windw", ["window", "linear"]) == "window"
    assert nearest("t", ["T", "B"]) == "T"
    assert nearest("WINDOW", ["window"]) == "window"
    assert nearest("performer", ["window", "linear"]) is None
    assert nearest("window", []) is None


def test_a_hint_names_the_nearest_or_else_everything_known():
    assert did_you_mean("windw", ["window", "full"]) == '; did you mean "window"?'
    assert did_you_mean("performer", ["window", "full"]) == "; known: full, window"
    assert did_you_mean("performer", []) == ""
