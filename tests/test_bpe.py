"""The tokenizer trained on the spot: exact round trips, short sequences, digits apart, Hugging Face's format."""

import json
import random
import time

import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers

from nanotriton.tasks.bpe import END, PAD, PIECES, train_tokenizer
from nanotriton.tasks.prompt import build_completion
from nanotriton.tasks.synthetic import generate


@pytest.fixture(scope="module")
def texts():
    return [text for task in generate("sft", 800, 0) for text in (task.source, build_completion(task))]


@pytest.fixture(scope="module")
def folder(texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(texts, 1024, folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def pieces(text):
    return [piece for piece, _ in pre_tokenizers.Split(Regex(PIECES), "isolated").pre_tokenize_str(text)]


def test_pieces_are_lines_runs_of_declarations_and_digits():
    assert pieces(
        "import torch\nimport triton\n\n\ndef f(x):\n    x = x * 25\n    y = -x\n    return x\n"
    ) == [
        "import torch\nimport triton\n\n\ndef f(x):",
        "\n    x = x * ",
        "2",
        "5",
        "\n    y = -x",
        "\n    return x\n",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "x = torch.log1p(x)",
        "tl.sum(x, axis=0)",
        "tl.arange(0, BLOCK)",
        "x.mean(dim=-1)",
        "x + 1e-5",
        "tl.float32",
    ],
)
def test_digits_that_are_no_quantity_stay_in_their_line(text):
    assert pieces(text) == [text]


@pytest.mark.parametrize("number", ["3", "0.5", "10", "204", "1.25", "0.05"])
def test_every_digit_of_a_number_is_a_token_of_its_own(tokenizer, number):
    tokens = [tokenizer.decode([i]) for i in tokenizer.encode(f"x = x * {number}").ids]
    assert [t for t in tokens if t.isdigit()] == [c for c in number if c.isdigit()]


def test_words_that_begin_like_a_declaration_are_none():
    assert pieces("a\nreturned = b\nimporter = c") == ["a", "\nreturned = b", "\nimporter = c"]


def test_any_text_round_trips(tokenizer, texts):
    rng = random.Random(0)
    alphabet = [
        *"ax0159 ._=-e(\n\n\t\r",
        "\0",
        "\x7f",
        "é",
        "漢",
        "🦙",
        "\u2028",
        "def",
        "\n    ",
        "return",
        "1e-5",
        "=-1",
        "```",
    ]
    noise = ["".join(rng.choices(alphabet, k=rng.randrange(60))) for _ in range(500)]
    for text in [*texts[:100], *noise, "", "\n", " ", "0", "   \n\n   x"]:
        assert "".join(pieces(text)) == text
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_bytes_that_are_no_text_have_tokens_too(tokenizer):
    """A model may sample any id: each decodes without an error, and all 256 bytes are there."""
    assert (
        len(
            {tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())}
            & set(pre_tokenizers.ByteLevel.alphabet())
        )
        == 256
    )
    for i in range(tokenizer.get_vocab_size()):
        assert isinstance(tokenizer.decode([i]), str)


def test_sequences_are_short_also_on_held_out_compositions(tokenizer):
    tasks = generate("dev", 100, 0)
    prompt = sum(len(tokenizer.encode(t.source).ids) for t in tasks) / len(tasks)
    completion = sum(len(tokenizer.encode(build_completion(t)).ids) for t in tasks) / len(tasks)
    assert prompt < 30 and completion < 36


def test_training_takes_seconds_and_gives_the_same_twice(texts, folder, tmp_path):
    start = time.process_time()
    train_tokenizer(texts, 1024, tmp_path)
    assert time.process_time() - start < 5
    assert (tmp_path / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_special_tokens_and_size(folder, tokenizer):
    assert (tokenizer.token_to_id(END), tokenizer.token_to_id(PAD)) == (0, 1)
    assert tokenizer.get_vocab_size() == 1024
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert (config["eos_token"], config["pad_token"]) == (END, PAD)


def test_the_end_token_is_one_token_only_when_written_in_full(tokenizer):
    assert tokenizer.encode("x" + END).ids[-1] == 0
    assert 0 not in tokenizer.encode(END[:-1]).ids


def test_a_vocabulary_without_room_for_the_bytes_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="at least 258"):
        train_tokenizer(["x"], 200, tmp_path)


def test_transformers_loads_it(folder, texts):
    auto = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert auto.eos_token == END and len(auto) == 1024
    assert all(auto.encode(t) == ours.encode(t).ids and auto.decode(auto.encode(t)) == t for t in texts[:20])
