"""Who runs in the next step and in which pages: the host's half of the sampler, in plain Python and NumPy.

A request becomes a Group, one prompt whose pages all of its samples share; the n samples are Sequences.
A sequence waits, then holds a slot and pages, then is finished; when pages run out the youngest one
goes back to waiting and is prefilled again, prompt and generated tokens together. Token counts are
known ahead of the results: every running sequence gets one token a step, so the GPU can run ahead of
the host, which hears of end tokens late and drops what came after them.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from nanotriton.kv_cache import PagePool


@dataclass
class Request:
    """`n` samples of one prompt. temperature 0 is greedy; top_k 0 and top_p 1 are off; one seed a sample, or
    None."""

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
    """What came of it. logprobs are of the distribution each token was drawn from (of temperature 1 when
    greedy)."""

    request: int
    index: int  # 0 to n - 1
    ids: list[int] = field(default_factory=list)  # the end token included
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = ""  # "stop" | "length"


@dataclass(eq=False)
class Group:
    request: Request
    pages: np.ndarray | None = None  # of the prompt, while somebody runs
    line: int = -1  # in prefix_table, while somebody runs
    holders: int = 0


@dataclass(eq=False)
class Sequence:
    group: Group
    sample: Sample
    seed: int
    slot: int = -1  # -1: waits or is finished
    fills_prompt: bool = False  # it is the one whose prefill writes the group's prompt pages


def pages_for(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


class Scheduler:
    """One `generate` call's worth of state. `running` slots take part in each decode step; arrays are indexed
    by slot."""

    def __init__(self, pages: int, page_size: int, max_batch: int, width: int, prefill_tokens: int):
        self.pool = PagePool(pages)
        self.page_size, self.max_batch, self.prefill_tokens = page_size, max_batch, prefill_tokens
        self.waiting: deque[Sequence] = deque()
        self.sequences: list[Sequence | None] = [None] * max_batch
        self.lines = list(range(max_batch))  # free lines of prefix_table
        self.order: list[Sequence] = []  # of admission, oldest first
        self.running = np.zeros(max_batch, dtype=bool)
        # `running` is not what the tiles were last made for; those tiles
        self.changed, self.made = True, None
        self.preemptions = 0
        # Line max_batch of the tables is for padding.
        self.tail_table = np.zeros((max_batch + 1, width), dtype=np.int32)
        self.prefix_table = np.zeros((max_batch + 1, width), dtype=np.int32)
        self.tail_pages = np.zeros(max_batch, dtype=np.int64)  # pages held
        self.prompt_len = np.zeros(max_batch, dtype=np.int64)
        self.count = np.zeros(max_batch, dtype=np.int64)  # tokens drawn so far, launched steps included
        self.limit = np.zeros(max_batch, dtype=np.int64)
        self.line = np.zeros(max_batch, dtype=np.int64)
        self.seed = np.zeros(max_batch, dtype=np.uint64)
        self.temperature = np.zeros(max_batch, dtype=np.float32)
        self.top_k = np.zeros(max_batch, dtype=np.int32)
        self.top_p = np.ones(max_batch, dtype=np.float32)

    def add(self, index: int, request: Request, seeds: list[int]) -> list[Sequence]:
        """Queue a request. ValueError if the cache could never hold one of its samples."""
        need = pages_for(len(request.prompt_ids), self.page_size) + pages_for(
            request.max_tokens - 1, self.page_size
        )
        if need > len(self.pool.free):
            raise ValueError(
                f"request {index}: {len(request.prompt_ids)} prompt and {request.max_tokens} new tokens need {need} pages of "  # noqa: E501
                f"{self.page_size} tokens, the cache has {len(self.pool.free)}: raise kv_gib or kv_fraction"
            )
        group = Group(request)
        sequences = [Sequence(group, Sample(index, i), seed) for i, seed in enumerate(seeds)]
        self.waiting.extend(sequences)
        return sequences

    def admit(self) -> list[Sequence]:
        """Give slots and pages to waiting sequences, oldest first, as far as slots, pages and prefill_tokens
        go.

        One free page is kept back for each running sequence, so that admission does not at once cause
        preemption.
        """
        admitted: list[Sequence] = []
        fresh: set[int] = set()  # groups whose prompt alone is in this prefill: its samples share that row
        tokens = 0
        while self.waiting and len(self.order) < self.max_batch:
            sequence = self.waiting[0]
            group, done = sequence.group, len(sequence.sample.ids)
            prompt = len(group.request.prompt_ids)
            prompt_pages = 0 if group.holders else pages_for(prompt, self.page_size)
            need, cost = prompt_pages + pages_for(done, self.page_size), prompt + done
            if self.order and self.pool.available < need + len(self.order) + 1:
                break
            if done == 0 and id(group) in fresh:
                cost = 0
            if admitted and tokens + cost > self.prefill_tokens:
                break
            tokens += cost
            if done == 0:
                fresh.add(id(group))
            self.waiting.popleft()
            self._place(sequence, prompt_pages, done)
            admitted.append(sequence)
        return admitted

    def _place(self, sequence: Sequence, prompt_pages: int, done: int) -> None:
        group, request = sequence.group, sequence.group.request
        sequence.fills_prompt = group.holders == 0
        if sequence.fills_prompt:
            group.pages, group.line = self.pool.take(prompt_pages, top=True), self.lines.pop()
            self.prefix_table[group.line, :prompt_pages] = group.pages
        group.holders += 1
        sequence.slot = slot = self.sequences.index(None)
        self.sequences[slot] = sequence
        self.order.append(sequence)
        held = pages_for(done, self.page_size)
        self.tail_table[slot, :held] = self.pool.take(held)
        self.tail_pages[slot], self.count[slot] = held, done
        self.prompt_len[slot], self.limit[slot], self.line[slot] = (
            len(request.prompt_ids),
            request.max_tokens,
            group.line,
        )
        self.seed[slot] = sequence.seed & 0xFFFFFFFFFFFFFFFF
        self.temperature[slot], self.top_k[slot], self.top_p[slot] = (
            request.temperature,
            request.top_k,
            request.top_p,
        )
        self.running[slot] = self.changed = True

    def drawn(self, slots: np.ndarray) -> None:
        """One token more for these slots has been launched; those at their limit run no further."""
        self.count[slots] += 1
        full = slots[self.count[slots] >= self.limit[slots]]
        if len(full):
            self.running[full] = False
            self.changed = True

    def grow(self) -> bool:
        """Give each running slot a page for its next token if it needs one; False (and nothing done) if they
        don't suffice."""
        slots = np.flatnonzero(self.running)
        need = slots[self.tail_pages[slots] * self.page_size < self.count[slots]]
        if len(need) > self.pool.available:
            return False
        if len(need):
            self.tail_table[need, self.tail_pages[need]] = self.pool.take(len(need))
            self.tail_pages[need] += 1
        return True

    def preempt(self) -> None:
        """Send the youngest sequence back to the head of the queue. No result may be outstanding."""
        sequence = self.order[-1]
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
            self.lines.append(group.line)
            group.pages = None
        self.sequences[slot], sequence.slot = None, -1
        self.order.remove(sequence)
        self.running[slot], self.changed = False, True

    def order_of_step(self) -> np.ndarray:
        """The running slots, longest context first: a GPU starts on them in this order, and a long one that
        is started last would run on alone."""
        slots = np.flatnonzero(self.running)
        return slots[np.argsort(-(self.prompt_len[slots] + self.count[slots]), kind="stable")]

    def tiles(self, slots: np.ndarray, cap: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows (positions in `slots`) by group, at most `cap` a tile: prefix_table lines [T], rows [T, R]
        padded with -1. Tiles of long prompts come first; of one row each, tile i is row i."""
        if self.changed:
            lines = self.line[slots]
            order = np.lexsort((lines, -self.prompt_len[slots]))
            bounds = [0, *(np.flatnonzero(np.diff(lines[order])) + 1), len(order)]
            runs = [(a, min(a + cap, end)) for start, end in pairwise(bounds) for a in range(start, end, cap)]
            rows = np.full((len(runs), max(b - a for a, b in runs)), -1, dtype=np.int32)
            for tile, (a, b) in enumerate(runs):
                rows[tile, : b - a] = order[a:b]
            if rows.shape[1] == 1:
                rows = np.arange(len(slots), dtype=np.int32)[:, None]
            self.made = lines[rows[:, 0]].astype(np.int32), rows
            self.changed = False
        return self.made
