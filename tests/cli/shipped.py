"""The recipes that come with us; files with a table `[study]` compare several and are none."""

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "recipes"
RECIPES = sorted(file for file in FOLDER.glob("*.toml") if "[study]" not in file.read_text())
