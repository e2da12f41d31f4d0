"""Where two records differ, as sentences."""

import math


def differences(expected, found, *, relative, absolute, where=""):
    """Every place in which `found` is not `expected`, numbers apart by more than tolerated."""
    if isinstance(expected, list) and isinstance(found, list):
        if all(isinstance(x, str) for x in [*expected, *found]):
            expected, found = dict.fromkeys(expected), dict.fromkeys(found)
        else:
            expected, found = dict(enumerate(expected)), dict(enumerate(found))
    if isinstance(expected, dict) and isinstance(found, dict):
        said = [f"{where}/{key} is gone" for key in expected if key not in found]
        said += [f"{where}/{key} is new" for key in found if key not in expected]
        if where.startswith("/tables/") and not said and list(expected) != list(found):
            said.append(f"{where}: the columns have another order")
        floor = absolute + relative * expected["size"] if "ramp" in expected else absolute
        for key in (key for key in expected if key in found):
            said += differences(
                expected[key], found[key], relative=relative, absolute=floor, where=f"{where}/{key}"
            )
        return said
    if _is_number(expected) and _is_number(found):
        near = math.isclose(expected, found, rel_tol=relative, abs_tol=absolute)
        return [] if near else [f"{where} was {expected} and is {found}"]
    same = type(expected) is type(found) and expected == found
    return [] if same else [f"{where} was {expected!r} and is {found!r}"]


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def structure(record):
    """Files, and columns in their order: what does not depend on any number."""
    return {
        "files": record["files"],
        "values": {name: content.get("keys") for name, content in record["values"].items()},
        "tables": {name: list(columns) for name, columns in record["tables"].items()},
    }
