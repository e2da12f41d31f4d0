"""Who does which part of the work."""

from isentrope.parallel.ranks import Ranks


def test_work_is_dealt_by_size():
    parts = Ranks(0, 2).deal([5, 1, 4, 3, 3])
    assert sorted(i for part in parts for i in part) == list(range(5))
    assert [sum([5, 1, 4, 3, 3][i] for i in part) for part in parts] == [8, 8]
