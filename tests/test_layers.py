"""The floors of the library: who may import whom."""

import ast

from tests.sources import dotted, trees

FLOORS = (
    ("_version", "system", "checkpoint.files"),
    ("parallel",),
    ("nouns",),
    ("models",),
    ("policy",),
    ("sampling", "update", "oracle"),
    ("estimators",),
    ("attribution",),
    ("checkpoint.record", "evaluation", "planning"),
    ("checkpoint.infer",),
    ("checkpoint.convert",),
    ("probe",),
    ("control",),
    ("training",),
    ("checks",),
    ("config",),
    ("checkpoint",),
    ("results",),
    ("run",),
    ("verbs",),
    ("reports",),
    ("commands",),
    ("cli", "from_notes"),
    ("__main__",),
)
"""Packages and modules from the ground up. One imports those below it, never one above, and of
its own floor only modules of the ground floor, which are no packages. A part of a package with a
floor of its own is named by its dotted name."""

FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names}


def floor_name(module):
    """The package, or the part of one, to whose floor a module belongs."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in FLOOR_OF), parts[0])


ALLOWED_UPWARD: dict[tuple[str, str], str] = {}
"""(importing module, imported module) → reason. Keep it empty."""


def modules(parsed):
    """Dotted name below the package → tree; the package itself is ""."""
    return {
        dotted(path).removesuffix("__init__").removesuffix("."): tree
        for path, tree in parsed.items()
    }


def statements(body):
    """Statements that run when a module is imported; those for type checkers do not."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from statements(node.orelse)
            continue
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With, ast.ClassDef, ast.For, ast.While)):
            yield from statements(node.body)
            yield from statements(getattr(node, "orelse", []))
            yield from statements(getattr(node, "finalbody", []))
            for handler in getattr(node, "handlers", []):
                yield from statements(handler.body)


def imported(tree, known, *, everywhere=False):
    """Names in `known` that a module imports, when it is imported itself or anywhere in it."""
    for node in ast.walk(tree) if everywhere else statements(tree.body):
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            base = node.module or ""
            wanted = [
                whole
                if (whole := f"{base}.{alias.name}").removeprefix("isentrope.") in known
                else base
                for alias in node.names
            ]
        else:
            continue
        for name in wanted:
            if name == "isentrope" or name.startswith("isentrope."):
                yield name.removeprefix("isentrope").removeprefix(".")


def graph(parsed, *, everywhere=False):
    """Module → modules it imports, by name; the packages that these are in are not counted."""
    known = modules(parsed)
    return {
        name: (set(imported(tree, known, everywhere=everywhere)) & set(known)) - {name}
        for name, tree in known.items()
    }


def circles(edges):
    """Groups of modules that import each other, each sorted (Tarjan)."""
    order, lowest, stack, found = {}, {}, [], []

    def visit(node):
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for other in sorted(edges[node]):
            if other not in order:
                visit(other)
            if other in stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == order[node]:
            group = [stack.pop()]
            while group[-1] != node:
                group.append(stack.pop())
            found.append(sorted(group))

    for node in sorted(edges):
        if node not in order:
            visit(node)
    return [group for group in found if len(group) > 1]


def upward(edges):
    """(module, imported module) that the floors forbid."""
    for name, others in edges.items():
        room = floor_name(name)
        for other in others:
            below = floor_name(other)
            if room == below or room == "":
                continue  # the package itself gathers the public names
            ground = FLOOR_OF[room] == FLOOR_OF.get(below) == 0
            if below == "" or (FLOOR_OF[below] >= FLOOR_OF[room] and not ground):
                yield name, other


def test_no_module_imports_itself_by_way_of_others():
    """Imports for type checkers and those inside functions are counted."""
    assert circles(graph(trees(), everywhere=True)) == []


def test_no_package_imports_one_above_it():
    """Imports inside functions count too: a late import upward is an import upward."""
    found = set(upward(graph(trees(), everywhere=True)))
    assert found - set(ALLOWED_UPWARD) == set()
    assert set(ALLOWED_UPWARD) - found == set(), "exceptions that are needed no more"


def test_every_package_has_its_floor():
    rooms = {floor_name(name) for name in modules(trees())} - {""}
    assert rooms == set(FLOOR_OF)


def small(**contents):
    """A library of a few modules, each given by its content."""
    return {f"{n.replace('__', '/')}.py": ast.parse(text) for n, text in contents.items()}


def test_a_circle_is_found():
    library = small(
        policy__a="from isentrope.policy.b import x",
        policy__b="try:\n    from isentrope.policy import c\nexcept ImportError:\n    pass",
        policy__c="import isentrope.policy.a",
        policy__d="from isentrope.policy.a import y",
    )
    assert circles(graph(library)) == [["policy.a", "policy.b", "policy.c"]]


def test_imports_for_type_checkers_and_in_functions_are_told_from_others():
    library = small(
        policy__a="if TYPE_CHECKING:\n    from isentrope.policy.b import x",
        policy__b="from isentrope.policy.a import x",
        policy__c="def f():\n    from isentrope.policy.b import x",
    )
    assert circles(graph(library)) == []
    assert circles(graph(library, everywhere=True)) == [["policy.a", "policy.b"]]
    assert graph(library)["policy.c"] == set()
    assert graph(library, everywhere=True)["policy.c"] == {"policy.b"}


def test_an_import_upward_or_sideways_is_found():
    library = small(
        policy__a="from isentrope.nouns.vectors import norm",
        nouns__vectors="def f():\n    from isentrope.policy.a import x",
        nouns__rollouts="from isentrope.nouns.vectors import norm",
        sampling__a="from isentrope.update.a import x\nfrom isentrope.policy import a",
        update__a="import torch",
        isentrope__x="",
    )
    edges = graph(library, everywhere=True)
    edges.pop("isentrope.x")
    assert set(upward(edges)) == {("nouns.vectors", "policy.a"), ("sampling.a", "update.a")}


OPENED_IN = {
    *("verbs.prepare", "verbs.prepare_training", "verbs.loop"),
    *("verbs.plan", "verbs.plan_training", "verbs.passes", "verbs.recorded_seconds"),
    *("verbs.before_work", "verbs.part_memory", "verbs.answerable"),
    "checkpoint.settle",  # which fills it with training's settings
}
"""Modules that may take a whole configuration apart; those of `config` may too."""

TAKE_A_WHOLE_CONFIGURATION = {
    *(
        "check.check",
        "evaluate.evaluate_checkpoints",
        "sft.sft",
        "train.train",
        "folders.require_present",
    ),
    *("train._go_on", "sft._fine_tune", "replay.replay", "from_notes.__init__"),
    "evaluate.__init__",
}
"""Entry points of verbs, which open it for their verb; a run goes on by one of them."""

COMPARE_OR_WRITE_IT = {
    *("study.require_inputs", "study.study_items"),
    *("resuming.contract_config", "resuming.require_same_training"),
    *("origin.training_origin", "origin.measurement_origin", "origin.evaluation_origin"),
    *("origin.of_measurement", "origin.of_evaluation"),
}
"""Functions of `runs` to which a configuration is a document. Neither set may grow."""

WHOLE = {"MeasureConfig", "TrainConfig", "EvaluateConfig", "SftConfig", "Config"}


def takes_a_whole_configuration(tree):
    """Names of functions with a parameter of a type in `WHOLE`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        kinds = [ast.walk(p.annotation) for p in every if p.annotation is not None]
        if any(isinstance(x, ast.Name) and x.id in WHOLE for kind in kinds for x in kind):
            yield node.name


def test_few_functions_take_a_whole_configuration():
    found = {
        f"{name.rpartition('.')[2]}.{function}"
        for name, tree in modules(trees()).items()
        if not name.startswith("config") and name not in OPENED_IN
        for function in takes_a_whole_configuration(tree)
    }
    assert found == TAKE_A_WHOLE_CONFIGURATION | COMPARE_OR_WRITE_IT


def test_a_function_that_takes_a_whole_configuration_is_found():
    tree = ast.parse("def f(x: int, c: TrainConfig | None): ...\ndef g(c: BatchConfig): ...")
    assert list(takes_a_whole_configuration(tree)) == ["f"]
