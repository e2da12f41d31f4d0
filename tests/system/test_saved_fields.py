"""What is saved by its fields resumes with them, or says which one is wrong."""

import json

import pytest

from isentrope.system.saved_fields import SavedFields


class Count(SavedFields):
    SAVED = ("_steps", "first")

    def __init__(self):
        self._steps, self.first = 0, None


class Run(SavedFields):
    SAVED = ("_inner", "seen")

    def __init__(self):
        self._inner, self.seen = Count(), []


def test_a_saved_object_resumes_with_the_fields_of_those_in_it():
    run, again = Run(), Run()
    run._inner._steps, run._inner.first, run.seen = 3, 0.5, [[1, 2.0]]
    state = run.state_dict()
    run.seen.append([2, 3.0])  # which a state that was taken before does not have
    assert state == {"inner": {"steps": 3, "first": 0.5}, "seen": [[1, 2.0]]}
    again.load_state_dict(json.loads(json.dumps(state)))
    assert again.state_dict() == state


@pytest.mark.parametrize(
    ("wrong", "error"),
    [({"inner": {"steps": "3", "first": 1.0}, "seen": []}, ValueError), ({"seen": []}, KeyError)],
)
def test_a_field_that_is_missing_or_of_another_type_is_named(wrong, error):
    with pytest.raises(error, match=r"inner|steps"):
        Run().load_state_dict(wrong)
