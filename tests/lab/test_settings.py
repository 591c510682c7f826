"""Settings of experiments, and what patterns choose."""

from __future__ import annotations

import pytest

from vramkit.lab.catalog import find
from vramkit.lab.experiment import Case, chosen, chosen_cases
from vramkit.lab.settings import Setting, resolve

DECLARED = (
    Setting("rows", 1000, "how many", least=1, most=5000),
    Setting("share", 0.5, "of the card", most=1),
    Setting("touch", True, "whether blocks are written"),
    Setting("order", "random", "of frees", choices=("random", "reverse")),
    Setting("size", 1 << 20, "of a block", least=1, nbytes=True),
)


def test_settings_have_the_type_of_their_default() -> None:
    found = resolve(DECLARED, ["rows=20", "share=1", "touch=off", "order=reverse", "size=2MiB"])
    assert found == {
        "rows": 20,
        "share": 1.0,
        "touch": False,
        "order": "reverse",
        "size": 2 << 20,
    }
    assert isinstance(found["share"], float)


def test_what_is_not_given_has_its_default_and_the_last_one_counts() -> None:
    assert resolve(DECLARED, ["rows=20", "rows=30"])["rows"] == 30
    assert resolve(DECLARED, []) == {each.name: each.default for each in DECLARED}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("rows", "'rows' is no setting; it may be NAME=VALUE"),
        ("colour=red", "no setting is called 'colour'; there are: rows, share"),
        ("rows=0", "rows is '0'; it may be a whole number from 1 to 5000"),
        ("rows=1.5", "rows is '1.5'"),
        ("share=nan", "share is 'nan'; it may be a number from 0 to 1"),
        ("share=2", "share is '2'"),
        ("touch=maybe", "touch is 'maybe'; it may be on or off"),
        ("order=none", "order is 'none'; it may be random, reverse"),
        ("size=many", "size is 'many'; it may be a number of bytes, or text such as \"24GiB\""),
    ],
)
def test_a_bad_setting_says_what_is_allowed(given: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        resolve(DECLARED, [given])
    assert words in str(caught.value)


def test_patterns_choose_in_the_order_of_what_is_known() -> None:
    known = ["pool", "async", "rmm_pool", "rmm_arena"]
    assert chosen([], known, "subject") == known
    assert chosen(["rmm_*", "pool"], known, "subject") == ["pool", "rmm_pool", "rmm_arena"]
    with pytest.raises(ValueError, match="no subject is called 'jemalloc'; there are: pool"):
        chosen(["pool", "jemalloc"], known, "subject")


def test_a_workload_means_all_its_arms() -> None:
    cases = [Case("simple"), Case("simple", "locked"), Case("complex", "locked")]
    assert chosen_cases(["simple"], cases) == cases[:2]
    assert chosen_cases(["*/locked"], cases) == cases[1:]
    assert chosen_cases(["complex/locked"], cases) == cases[2:]
    with pytest.raises(ValueError, match="no case is called 'hard'; there are: simple, simple/loc"):
        chosen_cases(["hard"], cases)


@pytest.mark.parametrize("name", ["nothing", "no.such.module:NAME", "math:no_such_name"])
def test_an_experiment_that_is_not_there_is_one_error(name: str) -> None:
    with pytest.raises(ValueError, match=f"no experiment is (called|at) '{name}'"):
        find(name)
