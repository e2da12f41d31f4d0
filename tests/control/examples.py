"""Controls of examples/controls, by the names that a user gives them."""

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "controls"
NEGATIVE_SCALE = f"{FOLDER}/masks.py:NegativeScale"
RANDOM_MASK = f"{FOLDER}/masks.py:RandomMask"
STARE = f"{FOLDER}/stare.py:Stare"
CLIP_B = f"{FOLDER}/clip_b.py:ClipB"
INFLUENCE_CLIP = f"{FOLDER}/influence.py:InfluenceClip"
LP_REG = f"{FOLDER}/lp_reg.py:LpReg"
PASS_AT_K = f"{FOLDER}/pass_at_k.py:PassAtK"
W_REINFORCE = f"{FOLDER}/w_reinforce.py:WReinforce"
