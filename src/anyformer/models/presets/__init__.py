"""Complete models to start from: one recipe file each, named after the model."""

from pathlib import Path

from anyformer.core.fields import did_you_mean
from anyformer.errors import SpecError

FOLDER = Path(__file__).parent


def preset_names() -> tuple[str, ...]:
    """The name of every preset."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.toml")))


def preset_file(name: str) -> Path:
    """The recipe file behind a name; a name is never a path."""
    if name not in preset_names():
        raise SpecError(f"no preset is called {name!r}.{did_you_mean(name, preset_names())}")
    return FOLDER / f"{name}.toml"
