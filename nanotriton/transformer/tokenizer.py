"""Text to token ids and back: the `tokenizers` library plus the chat template, as transformers would do it.

tokenizer = Tokenizer("path/to/model")
ids = tokenizer.encode(tokenizer.chat([{"role": "user", "content": "Hi"}]))
text = tokenizer.decode(ids)
"""

import codecs
import functools
import json
import re
import shutil
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from nanotriton.transformer.model_config import ModelError, as_ids
from nanotriton.transformer.weights import find_folder, find_tokenizer_files, read_json

# in tokenizer_config.json: "source" for a model that was trained here from nothing
PROMPT = "nanotriton_prompt"
ANSWER = "the assistant's words"  # stands in a conversation that shows what the chat template puts behind
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """The tokenizer of a model folder (or hub id).

    It needs tokenizer.json, and uses tokenizer_config.json if it is there.

    eos_ids: every id that ends a text, the union of what config.json, generation_config.json, the tokenizer
    and the chat template say. end_id: the one of them that a model is taught to end its answer with.
    vocab_size: one past the largest id; a model's embedding may be padded beyond it. files: those that `save`
    copies.
    reads_source: the model was trained here from nothing and knows no instructions, only sources and
    completions.
    now: the time that a chat template is told (strftime_now); None: that of loading. variables: given to
    every chat template, such as Qwen3's {"enable_thinking": False}.
    Raises ModelError, also if config.json is in the folder and says that the embedding is smaller than the
    vocabulary.
    """

    def __init__(self, folder: str | Path, now: datetime | None = None, variables: dict | None = None):
        self.folder = find_folder(folder)
        self.now, self.variables = now or datetime.now(), variables or {}
        self.files = find_tokenizer_files(self.folder)
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{self.folder}: no tokenizer.json")
        raw = read_json(path)
        try:
            self.backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises bare Exception, with serde's words
            raise ModelError(f"{path}: not a tokenizer: {str(error).splitlines()[0]}") from None
        self.backend.no_padding()
        self.backend.no_truncation()

        config = self._optional("special_tokens_map.json") | self._optional("tokenizer_config.json")
        token = {role: config[role] for role in ROLES if config.get(role)}
        self.special = {role: t["content"] if isinstance(t, dict) else t for role, t in token.items()}
        self._add_tokens(config)
        self.vocab_size = max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.templates = self._read_templates(config.get("chat_template"))
        self.reads_source = config.get(PROMPT) == "source"
        model_config = self._optional("config.json")
        self._check_fits(model_config)
        self.bos_id, self.pad_id = self._id("bos_token"), self._id("pad_token")
        named = as_ids(self._id("eos_token"))
        for name in ("config.json", "generation_config.json"):
            try:
                named += as_ids(self._optional(name).get("eos_token_id"))
            except ModelError as error:
                raise ModelError(f"{self.folder / name}: {error}") from None
        self.ends = [i for i in named if 0 <= i < self.vocab_size]  # some configs say -1 for "none"
        self.closing_id = self._closing_id()
        self.eos_ids = frozenset(self.ends + as_ids(self.closing_id))
        decoder = raw.get("decoder") or {}
        parts = decoder.get("decoders", [decoder])
        self.byte_level = len(parts) == 1 and parts[0].get("type") == "ByteLevel"

    def _add_tokens(self, config: dict) -> None:
        """Add what the other files add to tokenizer.json, as transformers does.

        That is added_tokens_decoder in tokenizer_config.json, the older added_tokens.json, and special tokens
        that the vocabulary has as plain ones. ModelError for an id that the token can't get.
        """
        listed = config.get("added_tokens_decoder") or {}
        older = self._optional("added_tokens.json")
        try:
            wanted = {int(i): AddedToken(token, normalized=False) for token, i in older.items()}
            wanted |= {int(i): AddedToken(token["content"], **flags(token)) for i, token in listed.items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ModelError(f"{self.folder}: it adds tokens that are none") from None
        known = {token.content for token in self.backend.get_added_tokens_decoder().values()}
        for number, token in sorted(wanted.items()):
            if token.content in known:
                continue
            token.special = token.special or token.content in self.special.values()
            self.backend.add_tokens([token])
            if (given := self.backend.token_to_id(token.content)) != number:
                raise ModelError(
                    f"{self.folder}: {token.content!r} is to have id {number}, but after tokenizer.json it "
                    f"would be {given}: tokens are missing before it"
                )
            known.add(token.content)
        for token in self.special.values():
            if token not in known and self.backend.token_to_id(token) is not None:
                self.backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])

    def _optional(self, name: str) -> dict:
        path = self.folder / name
        return read_json(path) if path.is_file() else {}

    def _read_templates(self, template: str | list | None) -> dict[str, str]:
        """Templates by name; a chat_template.jinja beside the config replaces what the config holds."""
        path = self.folder / "chat_template.jinja"
        if path.is_file():
            return {"default": path.read_text(encoding="utf-8")}
        if isinstance(template, list):
            return {entry["name"]: entry["template"] for entry in template}
        return {"default": template} if template else {}

    def _check_fits(self, config: dict) -> None:
        """ModelError for a tokenizer with ids that the model's embedding has no row for."""
        rows = config.get("vocab_size")
        if isinstance(rows, int) and self.vocab_size > rows:
            raise ModelError(
                f"{self.folder}: the tokenizer has {self.vocab_size} ids, "
                f"the model's embedding only {rows} rows"
            )

    def _id(self, role: str) -> int | None:
        if role not in self.special:
            return None
        token_id = self.backend.token_to_id(self.special[role])
        if token_id is None and role == "eos_token":
            raise ModelError(f"{self.folder}: eos_token {self.special[role]!r} is not in the vocabulary")
        return token_id

    def _closing_id(self) -> int | None:
        """The special token that the chat template writes behind an assistant's message, if it writes one."""
        if "default" not in self.templates:
            return None
        turn = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": ANSWER}]
        try:
            text = self.chat(turn, add_generation_prompt=False)
        except ModelError:  # the template is for other conversations than this one
            return None
        if ANSWER not in text:
            return None
        special = {i for i, token in self.backend.get_added_tokens_decoder().items() if token.special}
        special.update(self.ends)
        behind = self.encode(text.rpartition(ANSWER)[2])
        return next((i for i in behind if i in special), None)

    @property
    def end_id(self) -> int:
        """The token that ends an answer. With a chat template it is the one that closes the assistant's
        turn, as `<|im_end|>` does; the end of a document, such as `<|endoftext|>`, is another token.

        Raises ModelError if neither the template nor the model's files name one.
        """
        if self.closing_id is not None:
            return self.closing_id
        if not self.ends:
            raise ModelError(
                f"{self.folder}: no token ends a text: no eos_token in tokenizer_config.json, "
                "and no eos_token_id in config.json"
            )
        return self.ends[0]

    # -------------------------------------------------------------------------------------------------- text
    # <-> ids
    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Ids of a text. `add_special_tokens` adds what the tokenizer's post-processor would (Llama-3's begin
        token):
        right for a raw prompt, wrong for a rendered chat, which already has it."""
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of ids; ValueError for an id that the vocabulary doesn't have.

        Bytes that are no UTF-8 become U+FFFD.
        """
        ids = list(ids)
        self.check(ids)
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def check(self, ids: Iterable[int]) -> None:
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise ValueError(f"token id {i} is outside the vocabulary (0 to {self.vocab_size - 1})")

    def stream(self) -> "Stream":
        """A decoder to feed ids to as they are sampled."""
        return Stream(self)

    # ------------------------------------------------------------------------------------------
    # chat
    @property
    def has_chat_template(self) -> bool:
        return bool(self.templates)

    def chat(
        self,
        messages: list[dict],
        add_generation_prompt: bool = True,
        tools: list[dict] | None = None,
        **variables,
    ) -> str:
        """Messages as the model's chat template writes them.

        It is byte for byte what transformers' apply_chat_template gives. Each message has `role` and
        `content`; `variables` go to the template (Qwen3: enable_thinking=False). Raises ModelError if there
        is no template, or the template refuses the messages.
        """
        name = "tool_use" if tools and "tool_use" in self.templates else "default"
        if name not in self.templates:
            raise ModelError(f"{self.folder}: the tokenizer has no chat template")
        messages = [without_none(message) for message in messages]
        try:
            return _compile(self.templates[name]).render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                strftime_now=self.now.strftime,  # frozen: a prompt must not change at midnight
                **(self.special | self.variables | variables),
            )
        # TypeError: a message without content, added to a string
        except (jinja2.TemplateError, TypeError) as error:
            raise ModelError(
                f"{self.folder}: the chat template failed: {' '.join(str(error).split())}"
            ) from None

    def save(self, folder: str | Path) -> None:
        """Copy the tokenizer's files, unchanged, to another folder."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        for file in self.files:
            shutil.copyfile(file, Path(folder) / file.name)


def flags(token: dict) -> dict[str, bool]:
    """How an added token is found in a text, from its entry in tokenizer_config.json."""
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {name: bool(token[name]) for name in names if name in token}


def without_none(message: dict) -> dict:
    """A message without the fields that are None, which some templates would print."""
    return {key: value for key, value in message.items() if value is not None}


class Stream:
    """Decode ids one at a time. What `push` and the last `flush` return joins to exactly `decode(ids)`.

    A piece never ends inside a character; bytes that can't become one are U+FFFD, as in `decode`.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.utf8 = codecs.getincrementaldecoder("utf-8")("replace") if tokenizer.byte_level else None
        self.ids: list[int] = []
        self.sent = 0

    def push(self, token_id: int) -> str:
        self.tokenizer.check([token_id])
        if self.utf8 is not None:
            return self.utf8.decode(self._bytes(token_id))
        # Other decoders look at neighbours (spaces, runs of byte tokens), so the whole text is decoded again.
        self.ids.append(token_id)
        if re.fullmatch("<0x[0-9A-F]{2}>", self.tokenizer.backend.id_to_token(token_id) or ""):
            return ""  # a run of byte tokens is one string, valid or not, once it has ended
        return self._rest(self.tokenizer.decode(self.ids))

    def flush(self) -> str:
        if self.utf8 is not None:
            return self.utf8.decode(b"", final=True)
        return self._rest(self.tokenizer.decode(self.ids))

    def _rest(self, text: str) -> str:
        piece, self.sent = text[self.sent :], len(text)
        return piece

    def _bytes(self, token_id: int) -> bytes:
        token = self.tokenizer.backend.id_to_token(token_id) or ""
        table = _byte_table()
        if all(char in table for char in token):
            return bytes(table[char] for char in token)
        return token.encode()  # an added token outside the byte alphabet stands for its own text


@functools.cache
def _byte_table() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes: the character of each byte, inverted."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (b for b in range(256) if b not in printable)
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's words. Here it changes nothing."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller) -> str:
        return caller()


@functools.cache
def _compile(template: str) -> jinja2.Template:
    """A template in the environment that transformers gives it: sandboxed, since it comes with a download."""

    def raise_exception(message: str):
        raise jinja2.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env.from_string(template)
