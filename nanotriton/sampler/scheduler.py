"""Who runs in the next step and in which pages: the host's half of the sampler, in plain Python and NumPy.

sampler.py makes one Scheduler for each `generate` call. Read that loop first: it asks in turn `admit`,
`grow` and `order_of_step`, and says `drawn` and `release`.

A request becomes a Group, one prompt whose pages all of its samples share; the n samples are Sequences. A
sequence waits, then is active, which is to hold a slot and pages, then is finished. It is running while it is
active and takes part in decode steps. When pages run out, the youngest one is preempted: it goes back to
waiting, and is prefilled again later, prompt and generated tokens together.

A *slot* is a number below max_batch; arrays are indexed by it. A slot has a line of page ids in
`tail_table`, for its tail: what the sample generates. A group has a line in `prefix_table`, for its prompt.

Token counts are known ahead of the results: every running sequence gets one token a step. So the GPU can run
ahead of the host, which hears of end tokens late and drops what came after them.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from nanotriton.sampler.kv_cache import NoRoom, PagePool


@dataclass
class Request:
    """`n` samples of one prompt. temperature 0 is greedy; top_k 0 and top_p 1 are off.

    seeds: one a sample, or None, for seeds of the sampler's.
    """

    prompt_ids: list[int]
    n: int = 1
    max_tokens: int = 256  # a sample has at most so many tokens, the end token included
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop_ids: frozenset[int] = frozenset()
    seeds: list[int] | None = None


@dataclass
class Sample:
    """One completion of a request.

    logprobs are of the distribution that each token was drawn from (of temperature 1 when greedy).
    """

    request: int  # its number in the `generate` call
    index: int  # of the sample in its request, 0 to n - 1
    ids: list[int] = field(default_factory=list)  # the end token included
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = ""  # "stop" | "length"


@dataclass(eq=False)
class Group:
    """A prompt and where its keys and values are."""

    request: Request
    pages: np.ndarray | None = None  # of the prompt, while there are holders
    line: int = -1  # in prefix_table, while there are holders
    holders: int = 0  # its active sequences


@dataclass(eq=False)
class Sequence:
    """A sample in the making."""

    group: Group
    sample: Sample
    seed: int
    slot: int = -1  # -1: waits or is finished
    fills_prompt: bool = False  # it is the one whose prefill writes the group's prompt pages


def pages_for(tokens: int, page_size: int) -> int:
    """How many pages hold so many tokens."""
    return -(-tokens // page_size)


class Scheduler:
    """The state of one `generate` call."""

    def __init__(self, pages: int, page_size: int, max_batch: int, width: int, prefill_tokens: int):
        self.pool = PagePool(pages)
        self.page_size, self.max_batch, self.prefill_tokens = page_size, max_batch, prefill_tokens
        self.waiting: deque[Sequence] = deque()
        self.sequences: list[Sequence | None] = [None] * max_batch  # by slot
        self.active: list[Sequence] = []  # oldest first
        self.free_lines = list(range(max_batch))  # of prefix_table
        self.preemptions = 0
        self.last_tiles: tuple[np.ndarray, np.ndarray] | None = None  # None: other slots run since
        # Line max_batch of the tables is for padding.
        self.tail_table = np.zeros((max_batch + 1, width), dtype=np.int32)
        self.prefix_table = np.zeros((max_batch + 1, width), dtype=np.int32)
        # By slot:
        self.running = np.zeros(max_batch, dtype=bool)
        self.tail_pages = np.zeros(max_batch, dtype=np.int64)  # how many pages its tail has
        self.prompt_len = np.zeros(max_batch, dtype=np.int64)  # tokens
        self.count = np.zeros(max_batch, dtype=np.int64)  # tokens drawn so far, launched steps included
        self.limit = np.zeros(max_batch, dtype=np.int64)  # the request's max_tokens
        self.line = np.zeros(max_batch, dtype=np.int64)  # its group's, in prefix_table
        self.seed = np.zeros(max_batch, dtype=np.uint64)
        self.temperature = np.zeros(max_batch, dtype=np.float32)
        self.top_k = np.zeros(max_batch, dtype=np.int32)
        self.top_p = np.ones(max_batch, dtype=np.float32)

    def add(self, index: int, request: Request, seeds: list[int]) -> list[Sequence]:
        """Queue a request. NoRoom if the cache could never hold one of its samples."""
        prompt, new = len(request.prompt_ids), request.max_tokens
        need = pages_for(prompt, self.page_size) + pages_for(new - 1, self.page_size)
        if need > len(self.pool.free):
            raise NoRoom(
                f"request {index}: {prompt} prompt and {new} new tokens need {need} pages of "
                f"{self.page_size} tokens, the cache has {len(self.pool.free)}: raise --kv-gib"
            )
        group = Group(request)
        sequences = [Sequence(group, Sample(index, i), seed) for i, seed in enumerate(seeds)]
        self.waiting.extend(sequences)
        return sequences

    def admit(self) -> list[Sequence]:
        """Give slots and pages to waiting sequences, oldest first -> those that are active now.

        It goes as far as slots, pages and prefill_tokens do. One free page is kept back for each active
        sequence, so that admission does not at once cause preemption.
        """
        admitted: list[Sequence] = []
        fresh: set[int] = set()  # groups whose prompt alone is in this prefill: its samples share that row
        tokens = 0
        while self.waiting and len(self.active) < self.max_batch:
            sequence = self.waiting[0]
            group, done = sequence.group, len(sequence.sample.ids)
            prompt = len(group.request.prompt_ids)
            prompt_pages = 0 if group.holders else pages_for(prompt, self.page_size)
            need = prompt_pages + pages_for(done, self.page_size)
            cost = prompt + done
            if self.active and self.pool.available < need + len(self.active) + 1:
                break
            if done == 0 and id(group) in fresh:
                cost = 0
            if admitted and tokens + cost > self.prefill_tokens:
                break
            tokens += cost
            if done == 0:
                fresh.add(id(group))
            self.waiting.popleft()
            self._activate(sequence, prompt_pages, done)
            admitted.append(sequence)
        return admitted

    def _activate(self, sequence: Sequence, prompt_pages: int, done: int) -> None:
        """Give a sequence a slot, and pages for the `done` tokens that it has.

        The first one to hold its group's prompt also gets pages for that.
        """
        group, request = sequence.group, sequence.group.request
        sequence.fills_prompt = group.holders == 0
        if sequence.fills_prompt:
            group.pages = self.pool.take(prompt_pages, top=True)
            group.line = self.free_lines.pop()
            self.prefix_table[group.line, :prompt_pages] = group.pages
        group.holders += 1
        sequence.slot = slot = self.sequences.index(None)
        self.sequences[slot] = sequence
        self.active.append(sequence)
        held = pages_for(done, self.page_size)
        self.tail_table[slot, :held] = self.pool.take(held)
        self.tail_pages[slot], self.count[slot] = held, done
        self.prompt_len[slot] = len(request.prompt_ids)
        self.limit[slot] = request.max_tokens
        self.line[slot] = group.line
        self.seed[slot] = sequence.seed & 0xFFFFFFFFFFFFFFFF
        self.temperature[slot] = request.temperature
        self.top_k[slot], self.top_p[slot] = request.top_k, request.top_p
        self.running[slot], self.last_tiles = True, None

    def drawn(self, slots: np.ndarray) -> None:
        """One token more for these slots has been launched; those at their limit run no further."""
        self.count[slots] += 1
        full = slots[self.count[slots] >= self.limit[slots]]
        if len(full):
            self.running[full], self.last_tiles = False, None

    def grow(self) -> bool:
        """Give each running slot a page for its next token, if it needs one.

        False, with nothing done, if there are not enough.
        """
        slots = np.flatnonzero(self.running)
        need = slots[self.tail_pages[slots] * self.page_size < self.count[slots]]
        if len(need) > self.pool.available:
            return False
        if len(need):
            self.tail_table[need, self.tail_pages[need]] = self.pool.take(len(need))
            self.tail_pages[need] += 1
        return True

    def preempt(self) -> None:
        """Send the youngest sequence back to the head of the queue. No step may be in flight."""
        sequence = self.active[-1]
        self.release(sequence)
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def release(self, sequence: Sequence) -> None:
        """Take back slot and pages, the prompt's too from the last holder."""
        slot, group = sequence.slot, sequence.group
        self.pool.give(self.tail_table[slot, : self.tail_pages[slot]])
        group.holders -= 1
        if group.holders == 0:
            self.pool.give(group.pages)
            self.free_lines.append(group.line)
            group.pages = None
        self.sequences[slot], sequence.slot = None, -1
        self.active.remove(sequence)
        self.running[slot], self.last_tiles = False, None

    def order_of_step(self) -> np.ndarray:
        """The running slots [B], longest context first. They are the rows of the next decode step.

        A GPU starts on them in this order, and a long one that is started last would run on alone.
        """
        slots = np.flatnonzero(self.running)
        return slots[np.argsort(-(self.prompt_len[slots] + self.count[slots]), kind="stable")]

    def tiles(self, slots: np.ndarray, cap: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows of a step by group, at most `cap` a tile -> (lines [T] of prefix_table, rows [T, R]).

        slots [B]: from order_of_step. A row is a position in it; -1 fills a tile up. Tiles of long prompts
        come first. Where tiles have one row each, tile i is row i. The answer is kept for as long as the
        same slots run, since all of them grow by one token a step, which keeps their order.
        """
        if self.last_tiles is None:
            lines = self.line[slots]
            order = np.lexsort((lines, -self.prompt_len[slots]))
            bounds = [0, *(np.flatnonzero(np.diff(lines[order])) + 1), len(order)]
            runs = [(a, min(a + cap, end)) for start, end in pairwise(bounds) for a in range(start, end, cap)]
            rows = np.full((len(runs), max(b - a for a, b in runs)), -1, dtype=np.int32)
            for tile, (a, b) in enumerate(runs):
                rows[tile, : b - a] = order[a:b]
            if rows.shape[1] == 1:
                rows = np.arange(len(slots), dtype=np.int32)[:, None]
            self.last_tiles = lines[rows[:, 0]].astype(np.int32), rows
        return self.last_tiles
