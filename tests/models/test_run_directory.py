"""The directory of a run: files of others are refused by name and stay unchanged."""

from pathlib import Path

import pytest

from rheoscope.models.run_directory import RUN_FILES, check_run_directory
from rheoscope.shapes import RheoscopeError
from tests.models.runs import run, small

RECIPE = small(steps=6)


@pytest.mark.parametrize("name", RUN_FILES)
def test_files_of_others_are_refused_by_name_and_not_changed(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"config": 3}')
    with pytest.raises(RheoscopeError, match=f"contains {name}, which no run of Rheoscope wrote; type out="):
        run(tmp_path, RECIPE)
    assert (tmp_path / name).read_text() == '{"config": 3}'
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_files_with_other_names_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    run(tmp_path, RECIPE, stop_at=3)
    check_run_directory(tmp_path, RECIPE.to_dict())
    assert (tmp_path / "README.md").read_text() == "mine"


def test_another_recipe_is_refused_whatever_the_vocabulary(tmp_path: Path) -> None:
    run(tmp_path, RECIPE, stop_at=3)
    recipe = RECIPE.to_dict()
    check_run_directory(tmp_path, recipe | {"config": recipe["config"] | {"vocabulary": 99}})
    with pytest.raises(RheoscopeError, match=r"holds a run with depth=2, got depth=1; use the same recipe"):
        check_run_directory(tmp_path, RECIPE.with_changes(depth=1).to_dict())
