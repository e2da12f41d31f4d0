"""An option of the Python functions has the default of the configuration key of its name."""

import inspect

import isentrope as ise
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.measure import MeasureConfig
from isentrope.config.train import TrainConfig

TRAINING_TOO = {"EntropyProbe": {"entropy_probe"}, "ProbeOptions": {"entropy_probe"}}
"""Functions that act in training, and the sections of its configuration that are theirs."""

OTHERWISE = {
    ("ProbeOptions", "temperature"): "None: the trainer's",
    ("ProbeOptions", "max_new_tokens"): "None: the trainer's",
    **{
        ("BudgetOptions", name): "options of a control, which are keys of control.options"
        for name in ("per", "size", "where")
    },
    ("ProbeOptions", "reward"): "a task or a function, where the key says whether to use one",
    ("EntropyProbe", "size"): "compared with entropy_probe.size; trial.size is of another draw",
    ("GradientOptions", "storage"): "one object for three keys",
    ("Policy", "max_tokens"): "that of a CPU, where null is the device's",
    ("Rollouts", "max_new_tokens"): "a property of a batch that exists",
    ("EvaluationOptions", "metrics"): "all of them, which null is",
    ("frontier", "groups"): "of two gradients, where the key is of influence",
    ("influence", "reward"): "a column of rewards, where the key says whether to use one",
    ("load_task", "split"): "no key: E, U and evaluation have their own",
    ("optimizer_step", "objective"): "as trained, else that of the key (tested with the step)",
    ("optimizer_step", "max_grad_norm"): "as trained, else that of the key",
    ("optimizer_step", "clip"): "as trained, else that of the key",
}
"""Options whose default differs on purpose, and why."""


def keys():
    """Name of a key → its defaults in the sections of measurements and evaluations."""
    found = {}
    for root in (MeasureConfig, EvaluateConfig, TrainConfig):
        for section, field in root.model_fields.items():
            for name, key in getattr(field.annotation, "model_fields", {}).items():
                default = key.get_default(call_default_factory=True)
                if name == "functional":  # what is `per` in Python
                    name = "per"
                    default = default.removeprefix("per_")
                found.setdefault(name, []).append((root, section, default))
    return found


def plain(value):
    return list(value) if isinstance(value, tuple) else value


def shared():
    """(function, option, its default, the key's default) of every option that is a key too."""
    of_keys = keys()
    for name in sorted(ise.__all__):
        function = getattr(ise, name)
        if not callable(function) or (
            isinstance(function, type) and issubclass(function, ise.Result)
        ):
            continue
        for option in inspect.signature(function).parameters.values():
            if option.name == "options":
                continue  # an object of this list, not the options of a control
            for root, section, default in of_keys.get(option.name, ()):
                own = section in TRAINING_TOO.get(name, ()) or root is not TrainConfig
                if own and option.default is not inspect.Parameter.empty:
                    yield name, option.name, option.default, default


def test_every_shared_option_has_the_default_of_its_key():
    rows = list(shared())
    differing = {(n, o) for n, o, mine, key in rows if plain(mine) != plain(key)}
    assert len(rows) > 60
    assert differing == set(OTHERWISE)
