"""The README's figures come from the result files."""

import readme_figures


def test_the_table_is_that_of_the_result_files():
    readme = readme_figures.README.read_text("utf-8")
    assert readme_figures.written(readme) == readme, "run python benchmarks/readme_figures.py"


def test_a_figure_that_was_changed_by_hand_is_noticed():
    readme = readme_figures.README.read_text("utf-8")
    changed = readme.replace("| H200, ", "| H100, ", 1)
    assert changed != readme
    assert readme_figures.written(changed) == readme
