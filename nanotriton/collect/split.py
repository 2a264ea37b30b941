"""Which set a module belongs to, by what it is and not by chance: SFT and RL on one side, three held-out sets
on the other.

held_out_operator: it has an operator that no module of SFT or RL has. held_out_composition: it has two
neighbouring operators that follow each other in no module there. held_out_shape: its sizes together are
those of none there. All three are functions of the module, so that a set made elsewhere or later, or in
shards, agrees.
"""

import zlib
from itertools import pairwise

OPERATOR, COMPOSITION, SHAPE = 50, 50, 50  # one in so many is held out


def bucket(kind: str, text: str, of: int) -> bool:
    return zlib.crc32(f"{kind}: {text}".encode()) % of == 0


def split_of(operators: list[str], sizes: list[int]) -> str:
    """ "train", or the name of a held-out set."""
    if any(bucket("operator", o, OPERATOR) for o in operators):
        return "held_out_operator"
    if any(bucket("composition", f"{a} {b}", COMPOSITION) for a, b in pairwise(operators)):
        return "held_out_composition"
    if sizes and bucket("shape", " ".join(map(str, sorted(sizes))), SHAPE):
        return "held_out_shape"
    return "train"
