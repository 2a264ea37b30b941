"""One prompt everywhere: SFT, GRPO, benchmarks and servers ask alike, whatever the model's tokenizer and template are."""

import json

import pytest
import torch
from tokenizers import processors

import train_sft
from bench.channels import sources
from nanotriton.config import ConfigError
from nanotriton.parallel.world import World
from nanotriton.rollout import prompts_of
from nanotriton.runs.run import Run
from nanotriton.sampler.sampler import Sampler
from nanotriton.tasks import kernelbench
from nanotriton.tasks.bpe import train_tokenizer
from nanotriton.tasks.pairs import read_pairs
from nanotriton.tasks.prompt import DEFAULT, build_prompt, of_messages, of_text, read_prompt, text_of
from nanotriton.tasks.task import Task
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig, ModelError
from nanotriton.transformer.tokenizer import Tokenizer
from nanotriton.transformer.weights import save_model
from tests.test_tokenizer import CHATML, LLAMA3, write_byte_level

SOURCE = "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return {'x': x}['x'] + 1\n"
TURN = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}<assistant>"
REFUSES = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TURN
DROPS = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}</>{% endfor %}<assistant>"
ALTERNATES = (  # as Mistral's: users and assistants take turns, and nobody else speaks
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}" + TURN
)


def base_tokenizer(folder):
    """Of a pretrained model without a chat template, whose texts open with a begin token."""
    write_byte_level(folder, bos_token="<|begin_of_text|>", eos_token="<|endoftext|>")
    tokenizer = Tokenizer(folder)
    begin = tokenizer.bos_id
    tokenizer.backend.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)]
    )
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


@pytest.fixture(params=["chat", "refuses", "base", "bare"])
def tokenizer(request, tmp_path):
    folder = tmp_path / "tokenizer"
    if request.param == "bare":
        train_tokenizer([SOURCE, "answer"], 300, folder)
        return Tokenizer(str(folder))
    if request.param == "base":
        return base_tokenizer(folder)
    template = CHATML if request.param == "chat" else REFUSES
    return Tokenizer(write_byte_level(folder, chat_template=template, eos_token="<|im_end|>"))


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def parts(messages: list[dict]) -> list[dict]:
    """The messages with their texts in two parts each, as some data sets have them."""
    split = lambda text: [{"type": "text", "text": text[:3]}, {"type": "text", "text": text[3:]}]
    return [{**message, "content": split(message["content"])} for message in messages]


# ---- SFT, GRPO and benchmarks ask alike ----


def test_a_row_that_names_a_task_is_asked_as_grpo_asks_it(tokenizer, tmp_path):
    data = lines(
        tmp_path / "data.jsonl",
        {"task": SOURCE, "completion": "answer"},
        {"task": "relu", "task_source": SOURCE, "completion": "answer", "prompt": "not this"},
        {
            "prompt": list(DEFAULT.of(SOURCE).dicts()),
            "completion": [{"role": "assistant", "content": "answer"}],
        },
        {"messages": [*DEFAULT.of(SOURCE).dicts(), {"role": "assistant", "content": "answer"}]},
        {
            "messages": [
                *parts(DEFAULT.of(SOURCE).dicts()),
                *parts([{"role": "assistant", "content": "answer"}]),
            ]
        },
    )
    cfg = train_sft.Config(data=data, max_len=100_000)
    pairs = train_sft.encode(read_pairs(data), cfg, tokenizer)
    [asked] = prompts_of([Task("t", SOURCE)], tokenizer, 100_000)
    # elsewhere messages have no system's text apart
    chats = pairs if tokenizer.has_chat_template else pairs[:2]
    assert [prompt for prompt, _ in chats] == [asked] * len(chats)
    assert {tuple(completion) for _, completion in pairs} == {(*tokenizer.encode("answer"), tokenizer.end_id)}


@pytest.mark.parametrize("style", ["autotriton", "kernelbench"])
def test_a_benchmark_asks_the_model_as_training_does(tokenizer, tmp_path, monkeypatch, style):
    seen = []

    class Stop(Exception):
        pass

    def generate(self, requests, on_finish=None):
        seen.extend(request.prompt_ids for request in requests)
        raise Stop

    monkeypatch.setattr(Sampler, "generate", generate)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=20_000,
    )
    save_model(Transformer(config).init_weights(0), tmp_path / "model", tokenizer.files)
    prompt = kernelbench.prompt_of(style)
    with pytest.raises(Stop):
        ask = sources.Ask("1/1", 0, prompt.of(SOURCE), 0)
        sources.from_model(
            str(tmp_path / "model"), [ask], sources.Sampling(max_tokens=8), World(), lambda *a: None
        )
    assert seen == prompts_of([Task("t", SOURCE)], tokenizer, 20_000, prompt)


@pytest.mark.parametrize(
    "other",
    [SOURCE.rstrip(), SOURCE + "\n\n", "\n" + SOURCE, "\ufeff" + SOURCE, SOURCE.replace("\n", "\r\n")],
    ids=["no line break", "empty lines", "an empty line first", "a mark", "CRLF"],
)
def test_how_a_file_begins_and_ends_changes_no_prompt(tokenizer, tmp_path, other):
    task = Task("t", SOURCE)
    assert build_prompt(Task("t", other), tokenizer) == build_prompt(task, tokenizer)
    data = lines(tmp_path / "data.jsonl", {"task": other, "completion": "answer"})
    [(prompt, _)] = train_sft.encode(read_pairs(data), train_sft.Config(data=data, max_len=10**6), tokenizer)
    assert prompt == build_prompt(task, tokenizer)
    if tokenizer.reads_source:  # such a model reads every prompt as a source
        assert train_sft.encode([(of_text(other), "a")], train_sft.Config(), tokenizer)[0][0] == prompt


def test_a_raw_prompt_of_a_pretrained_model_begins_as_its_texts_did(tmp_path):
    tokenizer = base_tokenizer(tmp_path)
    for prompt in (DEFAULT.of(SOURCE), of_text("def f("), of_messages(DEFAULT.dicts())):
        [(ids, _)] = train_sft.encode([(prompt, "a")], train_sft.Config(max_len=10**6), tokenizer)
        assert ids[0] == tokenizer.bos_id and ids.count(tokenizer.bos_id) == 1
    # whose template writes the token itself
    chat = Tokenizer(write_byte_level(tmp_path / "chat", chat_template=LLAMA3, bos_token="<|begin_of_text|>"))
    assert build_prompt(Task("t", SOURCE), chat).count(chat.bos_id) == 1
    both = base_tokenizer(tmp_path / "both").folder  # the template and the post-processor write it
    (both / "chat_template.jinja").write_text("{{ bos_token }}" + TURN)
    assert build_prompt(Task("t", SOURCE), Tokenizer(both)).count(chat.bos_id) == 1


# ---- a system message that the template does not take ----


@pytest.mark.parametrize("template", [REFUSES, DROPS, ALTERNATES])
def test_a_system_message_that_is_refused_or_dropped_opens_the_users(tmp_path, template):
    tokenizer = Tokenizer(write_byte_level(tmp_path, chat_template=template))
    asked = of_messages([{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "Hi"}])
    assert text_of(asked, tokenizer) == "<user>Be brief.\n\nHi</><assistant>"
    assert text_of(of_text("Hi"), tokenizer) == "<user>Hi</><assistant>"


def test_what_a_template_refuses_otherwise_is_still_an_error(tmp_path):
    tokenizer = Tokenizer(write_byte_level(tmp_path, chat_template="{{ raise_exception('never') }}"))
    with pytest.raises(ModelError, match="never"):
        text_of(DEFAULT.of(SOURCE), tokenizer)


def test_a_row_whose_roles_the_template_refuses_is_named(tmp_path):
    tokenizer = Tokenizer(write_byte_level(tmp_path, chat_template=ALTERNATES, eos_token="<|im_end|>"))
    hi, yes = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}
    data = lines(tmp_path / "d.jsonl", {"messages": [hi, yes]}, {"messages": [hi, hi, yes]})
    with pytest.raises(ConfigError, match=r"pair 2: .*roles must alternate") as error:
        train_sft.encode(read_pairs(data), train_sft.Config(data=data), tokenizer)
    assert "\n" not in str(error.value)


# ---- the token that ends an answer ----

GEMMA = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|eot_id|>\n{% endfor %}"
NO_CLOSE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}"  # as GLM-4's
THINKS = (  # drops the reasoning of earlier turns, closes with the tokenizer's own eos
    "{% for m in messages %}{{ m.role }}: {{ m.content.split('</think>')[-1] }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "eos", "config", "end"),
    [
        (CHATML, "<|endoftext|>", {"eos_token_id": 0}, "<|im_end|>"),  # a base model's folder with a template
        (CHATML, "<|im_end|>", {"eos_token_id": [0, 2]}, "<|im_end|>"),
        (GEMMA, "<|endoftext|>", {"eos_token_id": [0, 2]}, "<|eot_id|>"),
        (NO_CLOSE, "<|endoftext|>", {"eos_token_id": [2, 0]}, "<|endoftext|>"),
        (THINKS, "<|eot_id|>", {"eos_token_id": 0}, "<|eot_id|>"),
        (CHATML, None, {}, "<|im_end|>"),  # no eos anywhere but in the template
        (None, "<|im_end|>", {"eos_token_id": [0, 2]}, "<|im_end|>"),
        (None, None, {"eos_token_id": [4, 0]}, "<|eot_id|>"),
        (None, None, {"eos_token_id": [-1, 4]}, "<|eot_id|>"),
        ("{{ raise_exception('not this') }}", "<|eot_id|>", {"eos_token_id": 0}, "<|eot_id|>"),
    ],
)
def test_the_end_token_closes_the_assistants_turn(tmp_path, template, eos, config, end):
    more = {"chat_template": template} if template else {}
    folder = write_byte_level(tmp_path, **more, **({"eos_token": eos} if eos else {}))
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 400}))
    tokenizer = Tokenizer(folder)
    assert tokenizer.decode([tokenizer.end_id]) == end
    assert tokenizer.end_id in tokenizer.eos_ids and min(tokenizer.eos_ids) >= 0  # the sampler stops there
    if template:
        return
    [(_, completion)] = train_sft.encode([(of_text("Hi"), "ok")], train_sft.Config(), tokenizer)
    assert completion == [*tokenizer.encode("ok"), tokenizer.end_id]


def test_a_model_that_names_no_end_token_is_one_line(tmp_path):
    for config in ({}, {"eos_token_id": -1}, {"eos_token_id": None}):
        folder = write_byte_level(tmp_path)
        (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 400}))
        with pytest.raises(ModelError, match="no token ends a text") as error:
            train_sft.encode([(of_text("Hi"), "ok")], train_sft.Config(), Tokenizer(folder))
        assert "\n" not in str(error.value)


def test_an_exported_model_stops_where_it_was_taught_to_end(tmp_path):
    source = write_byte_level(tmp_path / "source", chat_template=CHATML, eos_token="<|endoftext|>")
    tokenizer = Tokenizer(source)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        eos_token_ids=(0,),
    )
    cfg = train_sft.Config(name="r", out=str(tmp_path))
    run = Run(cfg, World(), "sft")
    with torch.device("cpu"):
        run.export(Transformer(config).init_weights(0), tokenizer, "base")
    for name in ("config.json", "generation_config.json"):
        found = json.loads((tmp_path / "r" / "model" / name).read_text())
        assert found["eos_token_id"] == [0, tokenizer.end_id]


# ---- a prompt of the user's own ----


def test_the_users_own_prompt_is_in_every_form(tokenizer, tmp_path):
    (tmp_path / "mine.txt").write_text("Rewrite {this}:\n{source}\nas Triton:\n")
    messages = [
        {"role": "user", "content": "an example"},
        {"role": "assistant", "content": "its answer"},
        {"role": "user", "content": "```\n{source}\n```"},
    ]
    (tmp_path / "shots.json").write_text(json.dumps(messages))
    for name, inside in (
        ("mine.txt", f"Rewrite {{this}}:\n{SOURCE}as Triton:"),
        ("shots.json", "its answer"),
    ):
        prompt = read_prompt(str(tmp_path / name))
        text = text_of(prompt.of(SOURCE), tokenizer)
        assert inside in text and SOURCE.strip() in text and "{source}" not in text
        data = lines(tmp_path / "data.jsonl", {"task": SOURCE, "completion": "a"})
        cfg = train_sft.Config(data=data, max_len=10**6)
        [(ids, _)] = train_sft.encode(read_pairs(data, prompt), cfg, tokenizer)
        assert [ids] == prompts_of([Task("t", SOURCE)], tokenizer, 10**6, prompt)
    assert read_prompt("") is DEFAULT


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.txt", "Write a kernel.", "it has no {source}"),
        ("p.json", "{source}", "a JSON list of messages is expected"),
        (
            "p.json",
            '[{"role": "user", "content": "{source}"}, {"role": "assistant", "content": "a"}]',
            "last message",
        ),
        ("p.json", '[{"role": "system", "content": "{source}"}]', "last message is the system's"),
        ("p.json", "[]", "there are no messages"),
        ("p.json", '[{"role": "user", "content": 3}]', "a message is no"),
        ("p.txt", None, "cannot read: No such file"),
    ],
)
def test_what_is_no_prompt_is_one_line(tmp_path, name, text, said):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_prompt(str(path))
    assert str(error.value).startswith(f"--prompt {path}: ") and said in str(error.value)
    assert "\n" not in str(error.value)
