"""What the comparison of two builds concludes, in which order it runs, and what it compiles."""

import json
from fnmatch import fnmatch
from pathlib import Path

import pytest


def judged(old: list[list[float]], new: list[list[float]], unit: str = "ns", **last: str):
    """One row, measured in these passes; `last` goes to the row of the new build's last pass."""
    from build_verdicts import Comparisons
    from rows import Row

    found = Comparisons()
    for build, passes in (("old", old), ("new", new)):
        for values in passes:
            found.add(build, [Row("pair", "vramkit", unit, values=values)])
    if last:
        found.add("new", [Row("pair", "vramkit", unit, **last)])
    (comparison,) = found.judged()
    return comparison


def around(middle: float, passes: int = 5) -> list[list[float]]:
    """Two values a pass, one percent either side."""
    return [[middle * 0.99, middle * 1.01]] * passes


@pytest.mark.parametrize(
    ("new", "verdict", "failed"),
    [
        (around(110), "slower beyond the spread", True),
        (around(90), "faster beyond the spread", False),
        (around(100), "same within the spread", False),
        # Intervals apart, medians closer than 3 %.
        (around(102.5), "same within the spread", False),
        # Medians apart, intervals not.
        ([[100.0, 140.0]] * 5, "same within the spread", False),
        (around(110, passes=4), "not judged: 5 and 4 passes, 5 are needed", False),
        ([], "no figure in the new build: not run", True),
    ],
)
def test_slower_needs_intervals_apart_and_medians_apart(new, verdict, failed) -> None:
    comparison = judged(around(100), new)
    assert (comparison.verdict, comparison.failed) == (verdict, failed)


def test_a_row_that_is_new_is_no_failure() -> None:
    comparison = judged([], around(100))
    assert comparison.verdict == "no figure in the old build: not run"
    assert not comparison.failed


def test_the_verdict_is_made_again_with_every_pass() -> None:
    from build_verdicts import Comparisons
    from rows import Row

    found = Comparisons()
    found.add("old", [Row("pair", "vramkit", "ns", values=[100.0])])
    assert found.judged()[0].failed
    found.add("new", [Row("pair", "vramkit", "ns", values=[100.0])])
    assert not found.judged()[0].failed


def test_every_value_is_kept_in_order_with_its_median_and_ratio() -> None:
    comparison = judged([[1.0, 3.0], [2.0]], [[4.0], [6.0, 5.0]])
    assert (comparison.old.values, comparison.new.values) == ([1.0, 3.0, 2.0], [4.0, 6.0, 5.0])
    assert (comparison.old.passes, comparison.new.passes) == (2, 2)
    assert comparison.ratio == 2.5


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [(-6.0, -6.1, "same"), (0.0, 0.0, "same"), (0.0, 1.0, "slower"), (-6.0, 5.0, "slower")],
)
def test_medians_of_zero_and_below_have_a_verdict_but_no_ratio(old, new, verdict) -> None:
    comparison = judged([[old]] * 5, [[new]] * 5)
    assert comparison.ratio is None
    assert comparison.verdict.startswith(verdict)


def test_memory_is_more_not_slower() -> None:
    assert judged(around(100), around(200), "MiB").verdict == "more beyond the spread"


def test_errors_and_other_outcomes_are_told() -> None:
    failed = judged(around(100), around(100), error="no memory")
    assert failed.failed
    assert "failed at times: no memory" in failed.verdict
    other = judged(around(100), around(100), outcome="at times")
    assert "outcome was '' and is 'at times'" in other.verdict


def test_the_table_has_medians_spreads_and_the_verdict() -> None:
    from build_verdicts import markdown

    line = markdown([judged(around(200), around(300))]).splitlines()[-1]
    assert line == (
        "| vramkit/pair | 200 ns (198 to 202) | 300 ns (297 to 303) | 1.500 "
        "| slower beyond the spread |"
    )


class Machine:
    """Parts that take given seconds of a clock that only they move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[str] = []

    def part(self, name: str, seconds: float, wrong_in: str = ""):
        from alternation import Part, Pass

        def run(build: str, limit_s: float):
            self.now += seconds
            self.ran.append(f"{name} {build}")
            return Pass(wrong="status 2" if build == wrong_in else "")

        return Part(name, run)

    def alternate(self, times: int, end: float, *parts):
        from alternation import Alternation

        alternation = Alternation(times, 60, end, clock=lambda: self.now)
        for _ in alternation.passes(list(parts)):
            pass
        return alternation.notes


def test_builds_alternate_within_a_part_and_swap_their_order() -> None:
    machine = Machine()
    assert machine.alternate(2, 100, machine.part("a", 1), machine.part("b", 1)) == []
    assert machine.ran == [
        *("a old", "a new", "b old", "b new"),
        *("a new", "a old", "b new", "b old"),
    ]


def test_a_part_that_fails_is_noted_and_not_tried_again() -> None:
    machine = Machine()
    notes = machine.alternate(3, 100, machine.part("a", 1, wrong_in="new"), machine.part("b", 1))
    assert notes == ["a, new build: status 2"]
    assert machine.ran.count("a new") == 1
    assert machine.ran.count("b new") == machine.ran.count("b old") == 3


def test_a_part_that_does_not_fit_into_the_time_is_left_to_the_others() -> None:
    machine = Machine()
    notes = machine.alternate(3, 32, machine.part("slow", 10), machine.part("quick", 1))
    assert notes == ["slow: the time was over after 1 alternations"]
    assert machine.ran.count("slow old") == machine.ran.count("slow new") == 1
    assert machine.ran.count("quick old") == machine.ran.count("quick new") == 3


def make_tree(folder: Path, *engine: str) -> Path:
    for name in ("benchmarks/native/allocators.cpp", *(f"native/{each}" for each in engine)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("int main() {}")
    return folder


def test_a_tree_is_compiled_with_what_its_engine_has(tmp_path: Path) -> None:
    from compile_tree import Tree

    engine = ("base/a.cpp", "pool/cache/b.cpp", "pool/b.h", "sim/c.cpp", "bindings/d.cpp")
    tree = Tree(make_tree(tmp_path, *engine))
    names = [str(source.relative_to(tmp_path)) for source in tree.sources()]
    assert names == [
        "benchmarks/native/allocators.cpp",
        "native/base/a.cpp",
        "native/pool/cache/b.cpp",
    ]


def test_sources_of_one_name_in_two_folders_are_two_objects(tmp_path: Path) -> None:
    from compile_tree import Tree

    tree = Tree(make_tree(tmp_path, "pool/x.cpp", "driver/x.cpp"))
    outputs = [command[-1] for command in tree.compile_commands("g++", tmp_path)]
    assert len(set(outputs)) == 3


def test_the_digest_follows_the_sources(tmp_path: Path) -> None:
    from compile_tree import Tree

    one = Tree(make_tree(tmp_path / "one", "pool/x.cpp"))
    same = Tree(make_tree(tmp_path / "same", "pool/x.cpp"))
    moved = Tree(make_tree(tmp_path / "moved", "pool/y.cpp"))
    assert one.digest() == same.digest() != moved.digest()


def test_a_folder_that_is_no_source_tree_is_refused(tmp_path: Path) -> None:
    from compile_tree import CompileError, Tree

    with pytest.raises(CompileError, match="must be a source tree"):
        Tree(tmp_path).sources()


def test_a_compiler_that_is_missing_is_named(tmp_path: Path) -> None:
    from compile_tree import CompileError, Tree, compile_trees

    tree = Tree(make_tree(tmp_path / "tree", "pool/x.cpp"))
    with pytest.raises(CompileError, match="there is no no-such-compiler"):
        compile_trees([tree], tmp_path / "build", "no-such-compiler", 5)


def test_rows_are_grouped_by_family() -> None:
    from compare_builds import family_globs

    cases = ["vramkit/pair/small/1", "empty_loop/pair/small/1", "vramkit/holes"]
    cases += ["vramkit/fragmentation", "vramkit/fragmentation/tidied"]
    assert family_globs(cases) == {
        "pair": "*/pair/*",
        "holes": "*/holes",
        "fragmentation": "*/fragmentation*",
    }


ROWS = '{"rows": [{"workload": "w", "allocator": "a", "unit": "ns", "values": [1.0]}]}'


@pytest.mark.parametrize(
    ("script", "rows", "wrong"),
    [
        (f"echo '{ROWS}' > $0", 1, ""),
        # A row failed: the others count.
        (f"echo '{ROWS}' > $0; exit 1", 1, ""),
        (f"echo '{ROWS}' > $0; echo why >&2; exit 2", 0, "status 2: why"),
        ("echo /home/me/x.so is missing >&2; exit 1", 0, "status 1: x.so is missing"),
    ],
)
def test_a_process_is_believed_if_it_ended_well(tmp_path: Path, script, rows, wrong) -> None:
    from compare_builds import attempt

    result = tmp_path / "result.json"
    result.write_text(ROWS)  # of the pass before: never taken for this one's
    found = attempt(["sh", "-c", script, str(result)], result, 10)
    assert (len(found.rows), found.wrong) == (rows, wrong)


def test_the_page_names_every_row_that_may_be_slower() -> None:
    """And what measures them again on a card runs these rows, and no others."""
    import on_card
    import programs

    found = json.loads((programs.RESULTS / "compare_builds_h200.json").read_text())["comparisons"]
    rows = {f"{each['allocator']}/{each['workload']}": each for each in found}
    unsure = {
        name: each["ratio"]
        for name, each in rows.items()
        if each["verdict"] == "same within the spread" and each["ratio"] > 1.1
    }
    page = (programs.ROOT / "docs" / "allocators.md").read_text()
    for name, ratio in unsure.items():
        assert f"| `{name}` | {ratio:.2f} |" in page
    asked = {name for name in rows if any(fnmatch(name, glob) for glob in on_card.UNSURE)}
    assert asked == unsure.keys()
