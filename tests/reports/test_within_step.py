"""How many sequences lower entropy and earn nothing: what intervals tell, and no count of signs."""

from isentrope.reports.panels import plane
from isentrope.reports.read_run import read_run
from tests.reports.made_up import influence, tables, write


def test_a_sequence_is_counted_by_its_intervals_and_not_by_its_signs(tmp_path):
    sequences, tokens = tables(2, 2, ["a", "b"])
    sequences["delta_h"] = [-1.0, -1.0, -0.1, 1.0]
    sequences["delta_j"] = [-1.0, 1.0, -0.1, -1.0]
    sequences["delta_j_se"] = [0.1, 0.1, 0.1, 0.0]
    write(tmp_path, "influence", "step_8", influence(), sequences=sequences, tokens=tokens)
    (panel,) = plane.within_step(read_run(tmp_path))
    assert "25\u00a0% of the sequences lower entropy and earn nothing, and 50" in panel.lead
