"""A tokenizer trained on the spot: byte-level BPE that cuts text at lines and digits, so that sequences are
short.

A small model pays for every token, in attention, in sampling steps and in chances to err. So a piece,
the longest text that BPE may merge into one token, is a whole line with the line break and the
indentation before it, and a run of declarations (import, def, class, return ...) is one piece however
many lines it has: what is the same in every file becomes a few tokens. Each digit of a number is a
token of its own, so that constants are spelt, not memorised. Digits that are no quantity stay text: in
names (float32), a lone 0, named arguments (dim=-1) and exponents (1e-5).

Any text round-trips exactly: all 256 bytes are in the vocabulary.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END, PAD = "<|end|>", "<|pad|>"  # ids 0 and 1

# Text of a line up to a digit that counts; the first three alternatives are digits that don't.
_TEXT = r"(?:(?<=[A-Za-z_])[0-9]+|(?<==)-?[0-9][0-9.e-]*|(?<![0-9.])0(?![0-9.])|[0-9]e-[0-9]+|[^\n0-9])"
_DECLARATION = r"(?:(?:import|from|class|def|return|super)\b|self\.|@|```)"
PIECES = rf"(?:(?:\A|\n+) *{_DECLARATION}{_TEXT}*)+(?:\n+\z)?|\n+ *{_TEXT}+|\n+|[0-9]|{_TEXT}+"


def train_tokenizer(texts: Iterable[str], vocab_size: int, folder: str | Path) -> None:
    """Train on `texts` and write tokenizer.json and tokenizer_config.json to `folder`, in Hugging Face's
    format.

    vocab_size counts the two special tokens (END is the eos_token, PAD the pad_token) and the 256
    bytes; the result may be smaller if the texts hold no more pairs to merge. Raises ValueError if
    vocab_size < 258.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(alphabet) + 2:
        raise ValueError(f"vocab_size is {vocab_size}; the 256 bytes and 2 special tokens need at least 258")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END, PAD], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "nanotriton_prompt": "source",  # its models know no instructions, see transformer/tokenizer.py
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
