"""Nothing that only Unix has is needed to import the package."""

import subprocess
import sys

PROBE = """
import importlib, pkgutil, sys
import filelock, psutil  # choose their modules by platform, and need both on this one
sys.modules["fcntl"] = sys.modules["resource"] = None  # as on Windows
import anyformer
failures = []
for module in pkgutil.walk_packages(anyformer.__path__, "anyformer."):
    if module.name.endswith(("_kernel", "__main__")):  # Triton's, which only Linux has; the program itself
        continue
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        if error.name == "lm_eval":  # the adapter for this package, of the extra lm-eval
            continue
        failures.append(f"{module.name}: {error}")
sys.exit("\\n".join(failures) or 0)
"""


def test_every_module_can_be_imported_without_fcntl_and_resource() -> None:
    result = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
