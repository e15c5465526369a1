"""``read_properties`` reads an option such as ``A=1,B=2`` with an engine's names."""

import pytest
from delegraph.errors import OptionError
from delegraph_engines import read_properties


def test_spaces_and_empty_items_are_ignored():
    properties = read_properties("option", " A=1, B = x.y-z ,,", {"A", "B"})

    assert properties == {"A": "1", "B": "x.y-z"}


def test_an_empty_text_has_no_properties():
    assert read_properties("option", "", {"A"}) == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A", "has no '='"),
        ("C=1", "cannot set 'C'"),
        ("A=../x", "cannot set 'A'"),
        ("A=", "'A'"),
    ],
)
def test_malformed_or_unknown_properties_are_refused(text, reason):
    with pytest.raises(OptionError, match=reason):
        read_properties("option", text, {"A"})
