"""Short labels of specs: kind and plain options, such as window(size=3)."""

from anyformer.core import Spec

LONGEST = 30


def called(spec: Spec) -> str:
    data = spec.to_dict()
    options = ", ".join(
        f"{name}={value}" for name, value in data.items() if isinstance(value, str | int | float) and name != "kind"
    )
    name = f"{spec.kind}({options})"
    return name if options and len(name) <= LONGEST else str(spec.kind)
