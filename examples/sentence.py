"""Sentence: finish a sentence in a few tokens, for a language model as it comes.

A prompt is "A short sentence: The river", and " is cold in winter." is correct: three words or more
and a full stop within `sampling.max_new_tokens`, whatever comes after. SmolLM2-135M-Instruct does
so now and then without fine-tuning, so a run starts at its own weights. Many responses are correct,
and what stands after the sentence earns nothing: the reward leaves the policy most of its entropy,
if training does not take it.

The split of a noun depends on a digest of it: train and test are disjoint.
"""

from __future__ import annotations

import re

from isentrope.sampling.prompt import Prompt
from isentrope.sampling.tasks.task import in_test, limited, require_split

_NOUNS = """
actor address animal answer apple apron arm army arrow artist attic aunt author autumn baby bag
baker balcony ball balloon banana bank barn basket bath beach bean bear beard bed bee bell belt
bench berry bicycle bird blanket blossom boat body bone book boot border bottle bowl box boy
branch bread breakfast breeze brick bridge brother brush bucket building bull bus bush butcher
butter button cabin cable cage cake calendar camera camp canal candle canyon cap captain car card
carpet carrot castle cat cave ceiling cellar chain chair chalk cheese cherry chest chicken child
chimney church circle city clay cliff clock cloth cloud clown coach coal coast coat coffee coin
collar comb compass cook copper corn corner cottage cotton couch country cousin cow cradle crane
cream creek crowd crown cup curtain cushion dancer daughter dawn deer desert desk diamond dinner
dish doctor dog doll dolphin donkey door dove dragon drawer dream dress driver drum duck dust
eagle ear earth egg elbow elephant engine envelope evening eye face factory family farm farmer
father feather fence ferry field finger fire fish flag flame flood floor flour flower flute fog
forest fork fountain fox friend frog fruit garage garden garlic gate ghost giant gift girl glass
glove goat gold goose grain grandmother grape grass grave guard guest guitar gulf hair hall hammer
hand harbor harp hat hawk heart hedge helmet hen herd hill honey hook horse hospital hotel house
hunter ice island jacket jail jar jewel journey judge juice jungle kettle key king kitchen kite
knee knife knight ladder lady lake lamb lamp lantern lawyer leaf leather lemon letter library
lighthouse lion lip lizard lock machine magnet mail map market mask mayor meadow meal medal melon
merchant metal milk mill miner mirror monkey monster moon morning moth mother motor mountain mouse
mouth museum mushroom music nail neck needle neighbor nest net night nose notebook nurse oak ocean
office oil olive onion orange orchard organ oven owl ox painter palace pan paper parade park
parrot path peach pear pearl pencil pepper photo piano picture pig pigeon pillow pilot pin pipe
pirate planet plate plow pocket poem poet pond pony pool potato pot prince prison puppet queen
rabbit radio rain rat raven ribbon rice ring river road robot roof room root rope rose sailor
salad salt sand school scissors sea seed shadow sheep shelf shell ship shirt shoe shop shoulder
shovel sister sky smoke snail snake snow soap sock soldier song soup spider spoon spring squirrel
stable star statue stone storm stove straw street string student sugar summer sun swan sword table
tailor tea teacher tent theater thief thunder ticket tiger tongue tooth towel tower town toy train
treasure tree truck trumpet tunnel turtle umbrella uncle valley vase village violin wagon waiter
wall watch water wave weather whale wheat wheel whistle widow wife wind window wine wing winter
wolf wood wool worker yard
"""
NOUNS = _NOUNS.split()
"""What prompts are about."""

BEGINNING = "A short sentence: The {noun}"
"""What a response continues."""

_SENTENCE = re.compile(r"\s*(\S+\s+){2,}\S*[a-z]\.")


class Sentence:
    """Finish a sentence about a thing.

    Attributes:
        prompts: All nouns of the split, or `limit` of them in seeded order; keys "sentence/river".
    """

    def __init__(self, split: str = "train", *, limit: int | None = None, seed: int = 0) -> None:
        """Choose the nouns.

        Args:
            split: "train" or "test"; disjoint.
            limit: Number of prompts, all by default.
            seed: Order in which `limit` takes them.
        """
        require_split(split, "Sentence")
        nouns = [noun for noun in NOUNS if in_test(noun) == (split == "test")]
        self.prompts = [_prompt(noun) for noun in limited(nouns, limit, seed)]

    def reward(self, response_text: str, reference: str | None) -> float:
        """1 if the response begins with three words or more and a full stop, else 0."""
        del reference  # every noun can be the subject of any sentence
        return float(bool(_SENTENCE.match(response_text)))


def _prompt(noun: str) -> Prompt:
    return Prompt(f"sentence/{noun}", text=BEGINNING.format(noun=noun))
