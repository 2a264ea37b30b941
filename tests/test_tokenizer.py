"""The tokenizer: chat templates byte for byte as transformers, exact streaming, the set of end tokens, refusals."""

import json
import random
from datetime import datetime

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from nanotriton.transformer.model_config import ModelError
from nanotriton.transformer.tokenizer import Tokenizer

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|eot_id|>",
    "<not a byte: ☃>",
]
TEXT = ["def f(x):\n    return x + 1\n", "the café, naïve 😀 text", "日本語のテキスト", "a b  c\t\n\n"] * 3


def write_byte_level(folder, **config):
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXT, trainer)
    return write(folder, backend, **config)


def write_byte_fallback(folder):
    """SentencePiece's style, as in Llama 2: spaces are a visible character, unknown characters are byte tokens."""
    pieces = ["<unk>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "▁the", "a", "b", "c", "é"]
    backend = Backend(
        models.BPE({p: i for i, p in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return write(folder, backend)


def write(folder, backend, **config):
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    base = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(base | config))
    return folder


# The styles that published models use, and the corners of Jinja that their templates rely on.
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are "
    "a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + "
    "message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") if strftime_now is defined else "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role not in ['user', 'assistant'] %}
        {{- raise_exception("only user and assistant follow the system message") }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, seeking=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.seeking and message.role == "user" and message.content is string %}
        {%- set ns.seeking = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
NO_TOOLS = """{%- if tools %}{{ raise_exception('this model uses no tools') }}{% endif %}
{% for message in messages %}
    {% if message.role == 'system' %}
{{ bos_token }}system
{{ message.content | trim }}{{ eos_token }}
    {%- elif message.role == 'assistant' %}
        {% generation %}
{{ bos_token }}assistant
{{ message['content'] }}{{ eos_token }}
        {% endgeneration %}
    {% else %}
        {% if loop.index > 20 %}{% break %}{% endif %}
{{ bos_token }}user
{{ message['content'] }}{{ eos_token }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ bos_token + 'assistant\n' }}{% endif %}
"""
TEMPLATES = {"chatml": CHATML, "smollm2": SMOLLM2, "llama3": LLAMA3, "qwen3": QWEN3, "no_tools": NO_TOOLS}
CHATS = [
    [{"role": "user", "content": "Write a Triton kernel.\n\n```python\nx = 1 < 2 & 'a' > \"b\"\n```\n"}],
    [
        {"role": "system", "content": "  Be brief. <é>\n"},
        {"role": "user", "content": "{{ 7 * 7 }} {% raw %}"},
    ],
    [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\ntwo", "tool_calls": None},
        {"role": "user", "content": "three"},
    ],
    [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning_content": "because"}],
]


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_render_as_transformers_does(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    tokens = {
        "bos_token": "<|begin_of_text|>",
        "eos_token": {"content": "<|im_end|>", "__type": "AddedToken"},
    }
    folder = write_byte_level(tmp_path, chat_template=TEMPLATES[name], **tokens)
    ours, theirs = Tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    variables = [{}, {"enable_thinking": False}, {"enable_thinking": True}] if name == "qwen3" else [{}]
    for chat in CHATS:
        for prompt in (True, False):
            for extra in variables:
                want = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompt, **extra)
                assert ours.chat(chat, add_generation_prompt=prompt, **extra) == want
                assert ours.encode(want) == theirs(want, add_special_tokens=False)["input_ids"]
    if name == "qwen3":
        tools = [{"type": "function", "function": {"name": "f", "description": "<&'\"é>", "parameters": {}}}]
        want = theirs.apply_chat_template(CHATS[0], tools=tools, tokenize=False, add_generation_prompt=True)
        assert "é" in want and ours.chat(CHATS[0], tools=tools) == want


def test_where_templates_are_read_from(tmp_path):
    folder = write_byte_level(tmp_path / "a", chat_template="old")
    (folder / "chat_template.jinja").write_text("new", encoding="utf-8")
    assert Tokenizer(folder).chat(CHATS[0]) == "new"
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    tokenizer = Tokenizer(write_byte_level(tmp_path / "b", chat_template=named))
    assert tokenizer.chat(CHATS[0]) == "plain" and tokenizer.chat(CHATS[0], tools=[{}]) == "tools"


def test_a_template_is_told_one_time_and_its_variables(tmp_path, monkeypatch):
    template = "{%- if strftime_now is defined %}{{ strftime_now('%d %b %Y %H:%M:%S') }}{% endif %}"
    folder = write_byte_level(tmp_path / "a", chat_template=template)
    began = datetime(2024, 7, 26, 23, 59, 58)
    assert Tokenizer(folder, began).chat(CHATS[0]) == "26 Jul 2024 23:59:58"
    tokenizer = Tokenizer(folder)
    first = tokenizer.chat(CHATS[0])
    monkeypatch.setattr("nanotriton.transformer.tokenizer.datetime", None)  # no clock is read any more
    assert tokenizer.chat(CHATS[0]) == first
    monkeypatch.undo()
    thinks = write_byte_level(tmp_path / "b", chat_template=QWEN3)
    empty = "<think>\n\n</think>\n\n"
    assert not Tokenizer(thinks).chat(CHATS[0]).endswith(empty)
    assert Tokenizer(thinks, variables={"enable_thinking": False}).chat(CHATS[0]).endswith(empty)
    assert (
        not Tokenizer(thinks, variables={"enable_thinking": False})
        .chat(CHATS[0], enable_thinking=True)
        .endswith(empty)
    )
    with pytest.raises(ModelError, match="template failed"):
        Tokenizer(thinks, variables={"messages": []}).chat(CHATS[0])


def test_template_errors_are_one_line(tmp_path):
    plain = Tokenizer(write_byte_level(tmp_path / "a"))
    assert not plain.has_chat_template
    with pytest.raises(ModelError, match="no chat template"):
        plain.chat(CHATS[0])
    llama = Tokenizer(write_byte_level(tmp_path / "b", chat_template=LLAMA3, bos_token="<|begin_of_text|>"))
    with pytest.raises(ModelError, match="only user and assistant follow"):
        llama.chat([{"role": "system", "content": "a"}, {"role": "tool", "content": "b"}])
    with pytest.raises(ModelError, match="template failed"):
        Tokenizer(write_byte_level(tmp_path / "c", chat_template="{% for %}")).chat(CHATS[0])
    with pytest.raises(ModelError, match="template failed"):
        Tokenizer(write_byte_level(tmp_path / "d", chat_template=CHATML)).chat([{"role": "user"}])


def test_the_template_is_sandboxed(tmp_path):
    escape = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(ModelError, match="template failed"):
        Tokenizer(write_byte_level(tmp_path / "a", chat_template=escape)).chat(CHATS[0])
    with pytest.raises(ModelError, match="template failed"):
        Tokenizer(write_byte_level(tmp_path / "b", chat_template="{{ messages.append(1) }}")).chat(CHATS[0])


def test_eos_is_the_union_of_three_files(tmp_path):
    folder = write_byte_level(tmp_path, eos_token="<|im_end|>")
    assert Tokenizer(folder).eos_ids == {2}
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 0, "vocab_size": 400}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 0]}))
    assert Tokenizer(folder).eos_ids == {0, 2, 4}


@pytest.mark.parametrize("ids", [-1, 400, [2, -100, 399], 300])
def test_end_ids_without_a_token_are_none(tmp_path, ids):
    """An embedding has more rows than the vocabulary has tokens; those rows are never sampled."""
    folder = write_byte_level(tmp_path, eos_token="<|im_end|>")
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_text(json.dumps({"eos_token_id": ids, "vocab_size": 500}))
        assert Tokenizer(folder).eos_ids == {2}
        (folder / name).unlink()


@pytest.mark.parametrize("ids", ["2", [2, None], 2.0, {"id": 2}])
def test_end_ids_that_are_no_ids_are_one_line(tmp_path, ids):
    folder = write_byte_level(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    with pytest.raises(ModelError, match=r"generation_config.json: eos_token_id is"):
        Tokenizer(folder)


def listed(*tokens: str, **flags) -> dict:
    """added_tokens_decoder: the tokens get the ids from 300 on."""
    usual = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": False}
    return {str(300 + i): {"content": token} | usual | flags for i, token in enumerate(tokens)}


PLAIN = "é"  # in the vocabulary of write_byte_fallback as a plain token
TEXTS = ["a<end>b", "a <tool> b", f"ca{PLAIN}b", "<|im_end|><end>"]


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": listed("<end>", "<tool>", special=True), "eos_token": "<end>"},
        {"added_tokens_decoder": listed("<end>", "<tool>", rstrip=True), "eos_token": "<end>"},
        {"added_tokens_decoder": {}, "eos_token": "<|im_end|>"},
    ],
)
def test_tokens_that_the_config_adds_are_added_as_transformers_does(tmp_path, config):
    transformers = pytest.importorskip("transformers")
    folder = write_byte_level(tmp_path, **config)
    ours, theirs = Tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert ours.vocab_size == len(theirs) and ours.eos_ids == {theirs.eos_token_id}
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids and ours.decode(ids) == theirs.decode(ids)
        assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(ids, skip_special_tokens=True)


def test_a_special_token_of_the_vocabulary_is_found_in_text(tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = write_byte_fallback(tmp_path)
    edited = json.loads((folder / "tokenizer_config.json").read_text()) | {
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(edited))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("a</s>b", "</s>", "ab c"):
        assert Tokenizer(folder).encode(text) == theirs(text, add_special_tokens=False)["input_ids"]


def test_added_tokens_json_is_read(tmp_path):
    folder = write_byte_level(tmp_path, pad_token="[PAD]")
    (folder / "added_tokens.json").write_text(json.dumps({"[PAD]": 300, "<|im_end|>": 2}))
    assert Tokenizer(folder).pad_id == 300 and Tokenizer(folder).encode("[PAD]") == [300]


def test_streaming_is_byte_exact(tmp_path):
    rng = random.Random(0)
    texts = ["naïve café 😀 日本語\n\n  x", "", *TEXT]
    for folder in (write_byte_level(tmp_path / "bytes"), write_byte_fallback(tmp_path / "fallback")):
        tokenizer = Tokenizer(folder)
        samples = [tokenizer.encode(text) for text in texts]
        # mostly no UTF-8 at all
        samples += [[rng.randrange(tokenizer.vocab_size) for _ in range(40)] for _ in range(50)]
        for ids in samples:
            stream = tokenizer.stream()
            pieces = [stream.push(i) for i in ids]
            assert "".join(pieces) + stream.flush() == tokenizer.decode(ids)
        for text in texts:
            assert tokenizer.decode(tokenizer.encode(text)) == text or folder.name == "fallback"


def test_streaming_never_splits_a_character(tmp_path):
    tokenizer = Tokenizer(write_byte_level(tmp_path))
    stream, pieces = tokenizer.stream(), []
    for i in tokenizer.encode("a𓀀b"):  # four bytes that no merge joins
        pieces.append(stream.push(i))
    assert pieces == ["a", "", "", "", "𓀀", "b"] and stream.flush() == ""


def test_ids_past_the_vocabulary_are_refused(tmp_path):
    tokenizer = Tokenizer(write_byte_level(tmp_path))
    for bad in (tokenizer.vocab_size, 10**9, -1):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            tokenizer.decode([1, bad])
        with pytest.raises(ValueError, match="outside the vocabulary"):
            tokenizer.stream().push(bad)
    assert tokenizer.decode([tokenizer.vocab_size - 1])


def test_special_tokens(tmp_path):
    folder = write_byte_level(tmp_path, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer = Tokenizer(folder)
    ids = tokenizer.encode("hi<|im_end|>")
    assert ids[-1] == 2 and tokenizer.pad_id == 0 and tokenizer.bos_id is None
    assert tokenizer.decode(ids) == "hi<|im_end|>" and tokenizer.decode(ids, skip_special_tokens=True) == "hi"


def test_save_copies_the_files(tmp_path):
    tokenizer = Tokenizer(write_byte_level(tmp_path / "a", chat_template=CHATML, eos_token="<|im_end|>"))
    tokenizer.save(tmp_path / "b")
    again = Tokenizer(tmp_path / "b")
    assert again.chat(CHATS[1]) == tokenizer.chat(CHATS[1]) and again.eos_ids == tokenizer.eos_ids
    assert (tmp_path / "b/tokenizer.json").read_bytes() == (tmp_path / "a/tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer.json"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "not a tokenizer"),
        (lambda f: (f / "tokenizer.json").write_text("{"), "cannot read"),
        (lambda f: (f / "tokenizer_config.json").write_text("[1]"), "not a JSON object"),
        (
            lambda f: (f / "tokenizer_config.json").write_text('{"eos_token": "<nope>"}'),
            "'<nope>' is not in the vocab",
        ),
        (
            lambda f: (f / "config.json").write_text('{"vocab_size": 299}'),
            "300 ids, the model's embedding only 299 rows",
        ),
        (
            lambda f: (f / "added_tokens.json").write_text('{"<new>": 310}'),
            "'<new>' is to have id 310, but after tokenizer.json it would be 300",
        ),
        (
            lambda f: (f / "tokenizer_config.json").write_text(
                '{"added_tokens_decoder": {"300": {"text": "x"}}}'
            ),
            "it adds tokens that are none",
        ),
        (
            lambda f: (f / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"300": null}}'),
            "it adds tokens that are none",
        ),
    ],
)
def test_broken_folders_are_one_clear_line(tmp_path, break_it, message):
    folder = write_byte_level(tmp_path)
    break_it(folder)
    with pytest.raises(ModelError, match=message) as error:
        Tokenizer(folder)
    assert "\n" not in str(error.value) and str(folder) in str(error.value)
