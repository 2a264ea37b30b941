"""Read TTIR, the MLIR text that Triton's front end prints, into functions, blocks and operations.

The grammar is that of the text which Triton 3.6 to 3.8 print, one operation a line, and not all of MLIR.
The text comes from a candidate, so it is hostile. For any text `parse` returns, or raises `ParseError` or
`Unsupported`, in time linear in the text's length.

    %x_3 = arith.addf %x, %y fastmath<fast> : tensor<64xf32> loc(#loc7)

becomes Op(name="arith.addf", operands=[slot of %x, slot of %y], results=[a new slot], rtypes=[Type("f32",
(64,))], ...). A slot is an index into the list of values that a function's evaluation carries.
"""

import re

from .types import (
    ELEMENTS,
    TERMINATORS,
    Block,
    Function,
    Op,
    ParseError,
    Region,
    Type,
    Unsupported,
    parse_type,
)

MAX_TEXT = 4 << 20  # characters
MAX_DEPTH = 16  # nested regions
MAX_RESULTS = 1024  # of one operation
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_POINTER = r"!tt\.ptr<(?:!tt\.ptr<\w+(?:, \d+)?>|\w+)(?:, \d+)?>"
_TOKEN = re.compile(
    rf"""(?P<skip>[ \t]+|//[^\n]*)|(?P<newline>\n)|(?P<string>{_STRING})|(?P<value>%[\w.$-]+(?:[:\#]\d+)?)
    |(?P<type>tensor<[\dx]*(?:{_POINTER}|\w+)>|{_POINTER}|!tt\.tensordesc<(?:tensor<[\dx]+\w+>|[\dx]+\w+)>)
    |(?P<dense>dense<(?:{_STRING}|[^<>"\n]*)>)|(?P<array>array<[^<>\n]*>)
    |(?P<dict><?\{{(?:[^{{}}\n"]|{_STRING})*\}}>?)|(?P<angle><[^<>\n]*>)
    |(?P<word>[A-Za-z_][\w.]*)|(?P<symbol>@(?:{_STRING}|[\w.$-]+)|\^\w+|\#\w+)
    |(?P<number>-?(?:0x[0-9A-Fa-f]+|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?))|(?P<punct>->|[()\[\],:=*<>{{}}?!|-])""",
    re.VERBOSE,
)
# Locations as Triton prints them; `_Parser.tokens` drops any that are left. They are half of the text.
_LOCATION = re.compile(rf"[ ]loc\((?:\#\w+|unknown|{_STRING}\(\#\w+\))\)|^\#loc[^\n]*", re.MULTILINE)
_PAIR = re.compile(rf"([\w.]+)(?: = ({_STRING}|(?:array|dense)<[^<>]*>|[^,<>]+))?")


class _Parser:
    """Tokens as three lists (their kinds, texts and lines), and `at`, the next one's index.

    fn: the function that is being read. scope: name of a value -> its slot. undo: (name, its slot before)
    of the names that the regions around have bound.
    """

    def __init__(self, text: str):
        if len(text) > MAX_TEXT:
            raise Unsupported(f"TTIR of {len(text)} characters, more than {MAX_TEXT}")
        self.kinds, self.texts, self.lines = self.tokens(_LOCATION.sub("", text))
        self.at, self.depth = 0, 0

    @staticmethod
    def tokens(text: str) -> tuple[list[str], list[str], list[int]]:
        kinds: list[str] = []
        texts: list[str] = []
        lines: list[int] = []
        line, at = 1, 0
        location = 0  # depth of parentheses inside a location; 0 outside
        for match in _TOKEN.finditer(text):
            kind = match.lastgroup
            if match.start() != at:
                break
            at = match.end()
            if kind == "skip":
                continue
            token = match.group()
            if kind == "newline":
                line += 1
            if token == "(" and not location and kinds and texts[-1] == "loc" and kinds[-1] == "word":
                for column in (kinds, texts, lines):  # the word `loc`
                    column.pop()
                location = 1
            elif location:
                location += (token == "(") - (token == ")")
            else:
                kinds.append(kind)
                texts.append(token)
                lines.append(line)
        if at != len(text):
            raise ParseError(f"line {line}: cannot read {text[at : at + 20]!r}")
        kinds.append("end")
        texts.append("")
        lines.append(line)
        return kinds, texts, lines

    # --- tokens

    def peek(self) -> tuple[str, str]:
        """The next token's kind and text."""
        return self.kinds[self.at], self.texts[self.at]

    def error(self, wanted: str) -> ParseError:
        return ParseError(
            f"TTIR line {self.lines[self.at]}: expected {wanted}, found {self.texts[self.at][:40]!r}"
        )

    def take(self, kind: str) -> str:
        """The text of the next token, which must be of this kind."""
        if self.kinds[self.at] != kind:
            raise self.error(kind)
        self.at += 1
        return self.texts[self.at - 1]

    def accept(self, text: str) -> bool:
        """Pass over the next token if it is this one."""
        if self.texts[self.at] == text and self.kinds[self.at] != "string":
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(repr(text))

    def newlines(self) -> None:
        while self.kinds[self.at] == "newline":
            self.at += 1

    # --- values: names are scoped by region, slots are not

    def define(self, name: str, type: Type) -> int:
        """A new slot for a value of this name."""
        slot = len(self.fn.types)
        self.fn.types.append(type)
        self.undo.append((name, self.scope.get(name)))
        self.scope[name] = slot
        return slot

    def use(self) -> int:
        """The slot of the value that the next token names."""
        name = self.take("value")
        slot = self.scope.get(name)
        if slot is None:
            raise ParseError(f"TTIR line {self.lines[self.at - 1]}: {name[:40]} is not defined")
        return slot

    def type(self) -> Type:
        kind, text = self.peek()
        if kind not in ("type", "word"):
            raise self.error("a type")
        self.at += 1
        return parse_type(text)

    def type_list(self) -> list[Type]:
        """`t` or `(t, t)` or `t, t`, with separators that carry no meaning here."""
        types: list[Type] = []
        parens = self.accept("(")
        while True:
            kind, text = self.peek()
            element = kind == "word" and (text in ELEMENTS or text[1:].isdigit())
            if kind == "type" or element:
                types.append(self.type())
            elif kind == "angle":  # tt.make_tensor_descriptor: <f16>, <16x32xf16>
                self.at += 1
                types.append(parse_type(f"tensor<{text[1:-1]}>"))
            # the same in Triton 3.6: <tensor<16x32xf16>>
            elif text == "<" and self.kinds[self.at + 1] == "type":
                self.at += 1
                types.append(self.type())
                self.expect(">")
            elif not (self.accept(",") or self.accept("*")):
                if parens:
                    self.expect(")")
                return types

    def attributes(self, into: dict[str, str]) -> None:
        text = self.take("dict")
        inner = text[2:-2] if text[0] == "<" else text[1:-1]
        for key, value in _PAIR.findall(inner):
            if value.startswith('"'):
                into[key] = value[1:-1]
            else:
                into[key] = value.split(" : ")[0]

    # --- structure

    def module(self) -> dict[str, Function]:
        functions: dict[str, Function] = {}
        while self.kinds[self.at] != "end":
            if self.accept("tt.func"):
                fn = self.function()
                functions[fn.name] = fn
            else:
                self.at += 1
        if not functions:
            raise ParseError("no tt.func in the TTIR")
        return functions

    def function(self) -> Function:
        public = self.accept("public") or not self.accept("private")
        self.fn = Function(self.take("symbol")[1:].strip('"'), public)
        self.scope: dict[str, int | None] = {}
        self.undo: list[tuple[str, int | None]] = []
        self.expect("(")
        while not self.accept(")"):
            name = self.take("value")
            self.expect(":")
            self.fn.args.append(self.define(name, self.type()))
            self.fn.arg_names.append(name[1:])
            if self.kinds[self.at] == "dict":
                self.at += 1
            self.accept(",")
        if self.accept("->"):
            self.type_list()
        if self.accept("attributes"):
            self.take("dict")
        if self.accept("{"):  # else a declaration
            self.fn.body = self.region()
        return self.fn

    def region(self, args: tuple[tuple[str, Type], ...] = ()) -> Region:
        """After its `{`, through its `}`. args: block arguments that the operation itself names."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unsupported(f"regions nested more than {MAX_DEPTH} deep")
        mark = len(self.undo)
        first = self.lines[self.at]
        blocks = [Block("^bb0", [self.define(name, type) for name, type in args])]
        self.newlines()
        while not self.accept("}"):
            kind, text = self.peek()
            if kind == "symbol" and text.startswith("^"):
                self.label(blocks)
            else:
                blocks[-1].ops.append(self.op())
            self.newlines()
        ops = blocks[-1].ops
        if self.depth > 1 and (not ops or ops[-1].name not in TERMINATORS):
            ops.append(Op("scf.yield", first))  # it is not printed when it yields nothing
        while len(self.undo) > mark:
            name, slot = self.undo.pop()
            self.scope[name] = slot
        self.depth -= 1
        return blocks

    def label(self, blocks: list[Block]) -> None:
        """`^bb1(%x: type, ..):`, the start of a block."""
        label = self.take("symbol")
        if label != "^bb0":
            blocks.append(Block(label))
        if self.accept("("):
            while not self.accept(")"):
                name = self.take("value")
                self.expect(":")
                blocks[-1].args.append(self.define(name, self.type()))
                self.accept(",")
        self.expect(":")

    def op(self) -> Op:
        names = []
        while self.kinds[self.at] == "value":
            names.append(self.take("value"))
            if not self.accept(","):
                self.expect("=")
        kind, name = self.peek()
        if kind not in ("word", "string"):
            raise self.error("an operation")
        self.at += 1
        op = Op(name.strip('"'), self.lines[self.at - 1])
        special = {
            "scf.for": self.scf_for,
            "scf.while": self.scf_while,
            "cf.br": self.branch,
            "cf.cond_br": self.branch,
        }
        special.get(op.name, self.generic)(op)
        op.otypes = [self.fn.types[i] for i in op.operands]
        if op.name == "arith.constant" and op.words in (["true"], ["false"]):
            op.rtypes = [Type("i1")]
        self.results(op, names)
        kind, text = self.peek()
        if kind not in ("newline", "end") and text != "}":
            raise self.error("the end of the operation")
        return op

    def results(self, op: Op, names: list[str]) -> None:
        """Define the results. `%x:2` stands for two, `%x#0` and `%x#1`."""
        flat: list[str] = []
        for name in names:
            base, _, count = name.partition(":")
            if not count:
                flat.append(base)
                continue
            if int(count) > MAX_RESULTS:
                raise Unsupported(f"{count} results of one operation")
            flat += [f"{base}#{i}" for i in range(int(count))]
        if len(op.rtypes) == 1:
            op.rtypes = op.rtypes * len(flat)
        if flat and len(op.rtypes) != len(flat):
            raise ParseError(
                f"TTIR line {op.line}: {len(flat)} results of {op.name[:40]} with {len(op.rtypes)} types"
            )
        op.rtypes = op.rtypes[: len(flat)]
        op.results = [self.define(n, t) for n, t in zip(flat, op.rtypes)]

    def generic(self, op: Op) -> None:
        """Operands, words, attributes and regions in any order up to the types.

        It is enough for all but four operations.
        """
        while self.kinds[self.at] not in ("newline", "end"):
            kind, text = self.peek()
            if kind == "value":
                op.operands.append(self.use())
            elif kind == "dict":
                self.attributes(op.attrs)
            elif kind == "punct" and text == "}":
                return
            elif kind == "punct":
                self.punctuation(op, text)
            else:
                self.at += 1
                if not (kind == "word" and text == "else"):
                    op.words.append(text)

    def punctuation(self, op: Op, text: str) -> None:
        """One punctuation mark of an operation, and the part that it opens."""
        self.at += 1
        if text == "=" and op.words:  # a word before it names an attribute
            op.attrs[op.words.pop()] = self.texts[self.at]
            self.at += 1
        elif text == "{":  # a region; scf.if may have `else {` after it
            op.regions.append(self.region())
        elif text == "->":  # scf.if %c -> (types) {
            op.rtypes = self.type_list()
        elif text == ":" and self.kinds[self.at] != "value":
            self.signature(op)

    def signature(self, op: Op) -> None:
        """The types after `:`. Without `->` the result's type follows from the operands'."""
        types = self.type_list()
        if self.accept("->") or self.accept("to"):
            op.rtypes = self.type_list()
        elif types:
            first, last = types[0], types[-1]
            if op.name in ("arith.cmpi", "arith.cmpf"):
                last = Type("i1", first.shape)
            elif op.name == "tt.load":
                last = first.target()
            elif op.name == "tt.addptr":
                last = first
            elif op.name == "tt.make_tensor_descriptor":
                last = Type("desc", last.shape, last.pointee or last.elem)
            op.rtypes = [last]

    def scf_for(self, op: Op) -> None:
        """`scf.for %i = %lo to %hi step %s iter_args(%a = %init) -> (types) : i32 { .. }`.

        The operands are lo, hi, s and the inits.
        """
        if self.kinds[self.at] == "word":  # `unsigned`
            op.words.append(self.take("word"))
        induction, names = self.take("value"), []
        for word in ("=", "to", "step"):
            self.expect(word)
            op.operands.append(self.use())
        if self.accept("iter_args"):
            names = self.bindings(op)
            self.expect("->")
            op.rtypes = self.type_list()
        index = self.type() if self.accept(":") else Type("index")
        if len(names) != len(op.rtypes):
            raise self.error("as many iter_args as types")
        self.expect("{")
        op.regions = [self.region(((induction, index), *zip(names, op.rtypes)))]
        if self.kinds[self.at] == "dict":
            self.attributes(op.attrs)

    def scf_while(self, op: Op) -> None:
        """`scf.while (%a = %init, ..) : (types) -> (types) { .. scf.condition(%c) .. } do { .. }`."""
        names = self.bindings(op) if self.texts[self.at] == "(" else []
        self.expect(":")
        before = self.type_list()
        self.expect("->")
        op.rtypes = self.type_list()
        if len(names) != len(before):
            raise self.error("as many arguments as types")
        self.expect("{")
        op.regions = [self.region(tuple(zip(names, before)))]
        self.expect("do")
        self.expect("{")
        op.regions.append(self.region())
        if self.accept("attributes") or self.kinds[self.at] == "dict":
            self.attributes(op.attrs)

    def bindings(self, op: Op) -> list[str]:
        """`(%a = %init, ..)`: the names. The inits become operands."""
        names = []
        self.expect("(")
        while not self.accept(")"):
            names.append(self.take("value"))
            self.expect("=")
            op.operands.append(self.use())
            self.accept(",")
        return names

    def branch(self, op: Op) -> None:
        """`cf.br ^bb1(%x : t)` and `cf.cond_br %c, ^bb1, ^bb2(%x : t)`."""
        if op.name == "cf.cond_br":
            op.operands.append(self.use())
            self.expect(",")
        while self.kinds[self.at] == "symbol":
            label, args = self.take("symbol"), []
            if self.accept("("):
                while self.kinds[self.at] == "value":
                    args.append(self.use())
                    self.accept(",")
                self.expect(":")
                self.type_list()
                self.expect(")")
            op.targets.append((label, args))
            self.accept(",")


def parse(text: str) -> dict[str, Function]:
    """The functions of a TTIR module by name. Raises ParseError or Unsupported."""
    return _Parser(text).module()
