"""Errors about results of a backend never print its bytes, which may be gigabytes."""

import pytest
from delegraph.backend import PreprocessResult
from delegraph.engine.contract_checks import flat_results
from delegraph.errors import ContractViolation


class Bytes(bytes):
    def __repr__(self):
        raise AssertionError("all bytes of a blob as text")


def test_an_error_counts_results_without_printing_them():
    results = [PreprocessResult(Bytes(b"1")), PreprocessResult(Bytes(b"2"))]
    assert (
        flat_results(
            "Acme", {"a": ["p"], "b": ["q"]}, {"b": results[1:], "a": results[:1]}
        )
        == results
    )
    with pytest.raises(
        ContractViolation,
        match=r"returned \{'a': 2\} results for each method; it was given \{'a': 1\}",
    ):
        flat_results("Acme", {"a": ["p"]}, {"a": results})


def test_a_list_instead_of_a_dict_is_named():
    with pytest.raises(
        ContractViolation,
        match=r"Acme.preprocess_multimethod returned \[1\] results for each method",
    ):
        flat_results("Acme", {"a": ["p"]}, [1])
