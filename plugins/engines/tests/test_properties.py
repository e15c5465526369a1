"""``read_properties``, for options with an engine's own names."""

import pytest
from delegraph.errors import OptionError
from delegraph_engines import read_properties


def test_properties_are_words_and_numbers_of_known_names():
    assert read_properties("o", " A=1, B = x.y-z ,,", {"A", "B"}) == {
        "A": "1",
        "B": "x.y-z",
    }
    assert read_properties("o", "", {"A"}) == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A", "has no '='"),
        ("C=1", "cannot set 'C'"),
        ("A=../x", "cannot set 'A'"),
        ("A=", "'A'"),
    ],
)
def test_other_texts_are_refused(text, reason):
    with pytest.raises(OptionError, match=reason):
        read_properties("o", text, {"A"})
