"""Looking entries up: any spelling finds them, a miss names the nearest, and a hit reads one file."""

from __future__ import annotations

from pathlib import Path

import pytest
from membound.hwmodels import catalog
from membound.hwmodels.errors import CatalogError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "things"
    home.mkdir()
    (home / "h100_sxm.yaml").write_text("id: h100_sxm\naliases: [H100, 'NVIDIA H100 SXM']\nrest: 1\n")
    (home / "l40s.yaml").write_text("id: l40s\naliases:\n  - Ada-48\nrest: 1\n")
    (home / "broken.yaml").write_text("id: broken\nrest: [1\n")
    return home


@pytest.mark.parametrize("name", ["h100_sxm", "H100_SXM", "h100-sxm", "H100 SXM", "h100", "nvidia_h100-sxm"])
def test_any_case_hyphen_or_alias_finds_the_entry(folder, name):
    assert catalog.find("thing", name, folder).name == "h100_sxm.yaml"


def test_aliases_may_be_a_list_over_several_lines(folder):
    assert catalog.find("thing", "ada 48", folder).name == "l40s.yaml"


def test_a_path_finds_a_file_outside_the_catalogue(folder, tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("id: mine\n")
    assert catalog.find("thing", tmp_path / "mine.yaml", folder) == tmp_path / "mine.yaml"
    assert catalog.find("thing", "mine.yaml", folder, relative_to=tmp_path).is_file()
    monkeypatch.chdir(tmp_path)
    assert catalog.find("thing", "./mine.yaml", folder).is_file()


def test_an_unknown_name_gets_the_nearest_and_the_allowed_ones_in_one_line(folder):
    with pytest.raises(CatalogError) as caught:
        catalog.find("thing", "h10_sxm", folder, where="scenario.yaml")
    text = str(caught.value)
    assert "'h10_sxm' in scenario.yaml" in text
    assert "nearest: 'h100_sxm'" in text
    assert "l40s" in text
    assert "\n" not in text


def test_a_missing_file_is_named_as_a_file(folder):
    with pytest.raises(CatalogError, match=r"thing file 'gone\.yaml' does not exist"):
        catalog.find("thing", "gone.yaml", folder)


def test_a_hit_by_id_reads_no_other_file(folder, monkeypatch):
    def no_scan(path: Path) -> list[str]:
        raise AssertionError(f"read {path.name}")

    assert catalog.find("thing", "h100_sxm", folder, aliases=no_scan).name == "h100_sxm.yaml"


def test_one_alias_for_two_entries_is_refused(folder):
    (folder / "other.yaml").write_text("id: other\naliases: [h-100]\n")
    with pytest.raises(CatalogError, match="names both"):
        catalog.find("thing", "something else", folder)


def test_a_file_that_is_not_yaml_is_named_with_line_and_column(folder, tmp_path):
    with pytest.raises(CatalogError, match="not YAML at line"):
        catalog.read_yaml(folder / "broken.yaml", "thing")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(CatalogError, match="holds no mapping"):
        catalog.read_yaml(tmp_path / "list.yaml", "thing")
    with pytest.raises(CatalogError, match="cannot be read"):
        catalog.read_yaml(tmp_path / "absent.yaml", "thing")
