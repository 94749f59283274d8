"""The measuring script counts what its table says it counts."""

from pathlib import Path

from tools.measure import (
    ROOT,
    File,
    banned_names,
    concrete_checks,
    core_sizes,
    device_checks,
    duplicate_classes,
    duplicate_files,
    read,
)

KIND = File(Path("parts/masks/window.py"), 'class Window(MaskRule, kind="window"):\n    size: int\n')
MODULE = File(
    Path("models/encoder.py"),
    'class Encoder(ModelSpec, kind="encoder"): ...\nclass EncoderModule(Module): ...\n',
)


def source(text: str, path: str = "data/loader.py") -> list[File]:
    return [File(Path(path), text)]


def test_a_banned_name_is_counted_wherever_it_is_bound() -> None:
    text = """
def run(self, given, rest):
    found = [it for it in rest]
    self.own = lambda told: told
    print(found, self.found)
"""
    bound, used = banned_names(source(text))
    assert [place.split()[1] for place in bound.places] == ["given", "found", "it", "own", "told"]
    assert used.value == 9


def test_a_check_of_the_device_counts_outside_of_ops() -> None:
    text = 'x.is_cuda\na = device.type == "cuda"\nb = table.get(x.device.type, 1)\nc = x.type == "text"\n'
    assert device_checks(source(text)).places == ("data/loader.py:1", "data/loader.py:2", "data/loader.py:3")
    assert device_checks(source(text, "ops/scan.py")).value == 0


def test_isinstance_counts_for_kinds_and_their_modules_but_not_for_families() -> None:
    text = """
from anyformer.models import EncoderModule
from anyformer.core.masks import MaskRule
from anyformer.parts.masks.window import Window
isinstance(x, Window | MaskRule)
isinstance(x, MaskRule)
isinstance(x, (str, EncoderModule))
"""
    exported = File(Path("models/__init__.py"), "from anyformer.models.encoder import EncoderModule\n")
    family = File(Path("core/masks.py"), "class MaskRule(Spec): ...\n")
    places = concrete_checks([KIND, MODULE, exported, family, *source(text)]).places
    assert places == ("data/loader.py:5 Window", "data/loader.py:7 EncoderModule")


def test_names_that_stand_twice_are_listed_and_kinds_may_share_a_file_name() -> None:
    files = [
        KIND,
        File(Path("ops/window.py"), "class Window: ...\n"),
        File(Path("core/window.py"), "class _Window: ...\n"),
    ]
    assert duplicate_classes(files).places == ("Window: parts/masks/window.py:1, ops/window.py:1",)
    assert duplicate_files(files).places == ("window.py: ops/window.py, core/window.py",)


def test_the_source_stays_within_the_limits() -> None:
    files = read(ROOT / "src" / "anyformer")
    frame, attention = core_sizes(files)
    limits = {concrete_checks(files): 5, device_checks(files): 8, frame: 8, attention: 140}
    assert [row for row, limit in limits.items() if row.value > limit] == []
