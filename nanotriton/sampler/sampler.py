"""Sampling for GRPO: continuous batching over a paged KV cache. The n samples of a prompt share its pages.

    with Sampler(model, kv_gib=4) as sampler:  # or sampler.close() at the end: its memory is given back
        request = Request(ids, n=8, max_tokens=256, stop_ids=eos)
        groups = sampler.generate([request], on_finish=reward_it_at_once)
        sampler.update_weights(trained.named_parameters())

`python -m nanotriton.complete MODEL --prompt TEXT` looks at a model.

`Sampler.generate` is the one loop, on the host: admit and prefill, decode one token for everybody, hand out
what is finished. The same code runs on a CPU and on a GPU. On a GPU a decode step is a CUDA graph, tokens
stay there, and the host reads them `LAG` steps late.

rollout.py samples with it to train, heldout.py to evaluate, and search/writers.py for sample.py. After this
file read scheduler.py (who runs, in which pages), kv_cache.py (the memory, and how a forward fills it),
graphs.py (the decode step on a GPU) and kernels/decode.py (its attention).
"""

import math
import runpy
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from nanotriton.kernels.decode import TILE_QUERIES, DecodeBatch, decode_attention
from nanotriton.kernels.sample import GOLDEN, sample_tokens, uniforms
from nanotriton.sampler.graphs import Graphs, Inputs, Reader, reader, upload
from nanotriton.sampler.kv_cache import CachedAttention, KVCache
from nanotriton.sampler.scheduler import Request, Sample, Scheduler, Sequence, pages_for
from nanotriton.transformer.attention import packed
from nanotriton.transformer.model import Transformer

__all__ = ["Request", "Sample", "Sampler"]

LAG = 2  # decode steps the GPU may be ahead of the host: a stopped sample costs so many wasted rows


@dataclass
class _Context:
    """What a prefill runs through the model: a prompt, and after it what a preempted sample had drawn."""

    ids: list[int]
    pages: np.ndarray  # [len(ids)] the page that each token's key and value go to
    offsets: np.ndarray  # [len(ids)] and where in it


def _context_key(sequence: Sequence) -> int:
    """What sequences have in common that share a context of a prefill."""
    return id(sequence) if sequence.sample.ids else id(sequence.group)


@dataclass
class _Launched:
    """A step whose tokens the host hasn't read yet."""

    read: Reader  # waits for the tokens
    sequences: list[Sequence]  # whose they are


class Sampler:
    """Samples from `model` as it is. On CUDA its parameters must stay at their addresses.

    kv_gib, kv_fraction: the cache takes so many GiB, or such a part of the memory that is free on the GPU
    when it is allocated. The default is a fraction of 0.7; on a CPU 1 GiB, of which only what is used
    becomes real.
    max_batch: at most so many samples run at once. page_size: tokens in a page of the cache.
    prefill_tokens: at most so many prompt tokens go through the model at once (one prompt may have more).
    valid_vocab: ids from there on are never drawn. seed: for requests that bring none.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        kv_gib: float | None = None,
        kv_fraction: float | None = None,
        max_batch: int | None = None,
        page_size: int | None = None,
        prefill_tokens: int = 16384,
        valid_vocab: int | None = None,
        seed: int = 0,
    ):
        if kv_gib is not None and kv_fraction is not None:
            raise ValueError("give kv_gib or kv_fraction, not both")
        self.model, self.config = model, model.config
        self.device = model.head_weight.device
        cuda = self.device.type == "cuda"
        if cuda and not any(p.requires_grad or p.dtype != model.compute_dtype for p in model.parameters()):
            model.merge_projections()  # the sampler's own copy; a model that is trained stays as it is
        self.kv_gib = 1.0 if kv_gib is None and not cuda else kv_gib
        self.kv_fraction = 0.7 if kv_fraction is None else kv_fraction
        self.max_batch = max_batch or (512 if cuda else 256)
        self.page_size = page_size or (64 if cuda else 32)
        self.prefill_tokens, self.valid_vocab, self.seed = prefill_tokens, valid_vocab, seed
        queries_a_sample = self.config.num_attention_heads // self.config.num_key_value_heads
        self.per_tile = max(TILE_QUERIES // queries_a_sample, 1)  # samples that read their prompt together
        self.width = pages_for(self.config.max_position_embeddings, self.page_size)  # of the page tables
        self.kv = KVCache(
            self.config.num_hidden_layers,
            self.config.num_key_value_heads,
            self.config.head_dim,
            self.page_size,
            model.compute_dtype,
            self.device,
        )
        # The newest token of each slot. The last entry is the padding rows'.
        self.last = torch.zeros(self.max_batch + 1, dtype=torch.int64, device=self.device)
        self.graphs = (
            Graphs(self.step, self.max_batch, self.width, self.per_tile, self.device) if cuda else None
        )
        self.unseeded = 0  # samples that have been given a seed of ours
        self.busy = self.closed = False
        self.stats: dict[str, int] = {}  # of the last generate call
        self.resume()

    # ---- memory and weights

    def resume(self) -> None:
        """Take the KV memory again after free(). Does nothing if it is held.

        It comes back at its address, so that captured graphs stay valid. Where kv_fraction rules and
        training has since taken so much that the old size doesn't fit, it is a fraction of what is free
        now, and graphs are captured anew.
        """
        self._idle("resume")
        if self.kv.data is not None:
            return
        if self.kv.pages:
            try:
                return self.kv.resume()
            except MemoryError:
                if self.kv_gib is not None:
                    raise
                self.graphs.clear()
        if self.kv_gib is not None:
            return self.kv.allocate(int(self.kv_gib * 2**30))
        torch.cuda.empty_cache()
        self.kv.allocate(int(self.kv_fraction * torch.cuda.mem_get_info(self.device)[0]))

    def free(self) -> None:
        """Give the KV memory back, to train with. generate() or resume() takes it again."""
        self._idle("free")
        self.kv.release()

    def close(self) -> None:
        """Give everything back at once: the KV memory, the CUDA graphs with what they hold, and the model.

        The graphs refer to the sampler and it to them. So without this a sampler that nobody uses any more
        keeps its memory until Python happens to look for cycles. Closing twice is closing once; anything else
        that is asked of a closed sampler is a RuntimeError.
        """
        if self.closed:
            return
        self._idle("close")
        self.closed = True
        self.kv.close()
        if self.graphs:
            self.graphs.close()
        self.graphs = self.model = self.last = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # for those who don't ask torch's allocator: the KV memory, the executor

    def __enter__(self) -> "Sampler":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @torch.no_grad()
    def update_weights(self, source: torch.nn.Module | Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy weights, by name, into the model's own parameters, whose addresses CUDA graphs hold.

        They are cast to the parameters' dtype. Every parameter must come exactly once; a tied lm_head may
        come too. ValueError otherwise. No page of the cache outlives a generate call, so nothing that was
        computed with the old weights is ever read again.
        """
        self._idle("update_weights")
        named = source.named_parameters() if isinstance(source, torch.nn.Module) else source
        mine = dict(self.model.named_parameters())
        missing = set(mine)
        for name, tensor in named:
            if name == "lm_head.weight" and name not in mine:
                continue
            if name not in missing:
                problem = "given twice" if name in mine else "not a parameter of the model"
                raise ValueError(f"update_weights: {name} is {problem}")
            if tensor.shape != mine[name].shape:
                raise ValueError(
                    f"update_weights: {name} is {tuple(tensor.shape)}, "
                    f"the model's is {tuple(mine[name].shape)}"
                )
            missing.remove(name)
            if tensor.data_ptr() != mine[name].data_ptr():
                mine[name].copy_(tensor)
        if missing:
            raise ValueError(
                f"update_weights: {len(missing)} parameters did not come, {min(missing)} among them"
            )

    def _idle(self, what: str) -> None:
        """RuntimeError if the sampler is closed, or generates. `what` is the method that was called."""
        if self.closed:
            raise RuntimeError(f"{what} was called on a closed sampler")
        if self.busy:
            raise RuntimeError(f"{what} was called while generate is running")

    # ---- the one loop

    @torch.inference_mode()
    def generate(
        self, requests: list[Request], on_finish: Callable[[Sample], None] | None = None
    ) -> list[list[Sample]]:
        """All samples of all requests, [len(requests)][n].

        `on_finish` gets each one as soon as it is finished. ValueError, before anything runs, for a request
        that can't be served.
        """
        self._idle("generate")
        self.resume()
        scheduler = Scheduler(self.kv.pages, self.page_size, self.max_batch, self.width, self.prefill_tokens)
        results = []
        for index, request in enumerate(requests):
            self._check(index, request)
            results.append([s.sample for s in scheduler.add(index, request, self._seeds(request))])
        self.busy = True
        flight: deque[_Launched] = deque()  # the oldest first
        lag = LAG if self.graphs else 0
        self.stats = {"prefill_tokens": 0, "decode_steps": 0, "decode_rows": 0}
        try:
            while scheduler.active or scheduler.waiting:
                if admitted := scheduler.admit():
                    flight.append(_Launched(self._prefill(scheduler, admitted), admitted))
                if scheduler.running.any() and self._grow(scheduler, flight, on_finish):
                    slots = scheduler.order_of_step()
                    sequences = [scheduler.sequences[i] for i in slots]
                    flight.append(_Launched(self._decode(scheduler, slots), sequences))
                while len(flight) > (lag if scheduler.running.any() else 0):
                    self._collect(scheduler, flight.popleft(), on_finish)
        finally:
            self.busy = False
            self.stats["preemptions"] = scheduler.preemptions
        return results

    def _check(self, index: int, request: Request) -> None:
        """ValueError for a request that no sampler of this model could serve."""
        prompt = request.prompt_ids
        longest, vocab = self.config.max_position_embeddings, self.config.vocab_size
        if not prompt:
            problem = "the prompt is empty"
        elif not 0 <= min(prompt) <= max(prompt) < vocab:
            problem = f"a prompt id is not in 0 to {vocab - 1}"
        elif request.n < 1 or request.max_tokens < 1:
            problem = "n and max_tokens must be at least 1"
        elif not (math.isfinite(request.temperature) and request.temperature >= 0):
            problem = "temperature must be a finite number, 0 or more"
        elif request.top_k < 0 or not 0 < request.top_p <= 1:
            problem = "top_k must be 0 or more, top_p above 0 and at most 1"
        elif request.seeds is not None and len(request.seeds) != request.n:
            problem = "there must be as many seeds as samples"
        elif len(prompt) + request.max_tokens > longest:
            problem = (
                f"{len(prompt)} prompt and {request.max_tokens} new tokens are more than "
                f"the model's {longest}"
            )
        else:
            return
        raise ValueError(f"request {index}: {problem}")

    def _seeds(self, request: Request) -> list[int]:
        """One seed a sample: the request's, or such as no sample of this sampler has had before."""
        if request.seeds is not None:
            return request.seeds
        self.unseeded += request.n
        return [self.seed * int(GOLDEN) + self.unseeded - i for i in range(request.n)]

    def _grow(self, scheduler: Scheduler, flight: deque[_Launched], on_finish: Callable | None) -> bool:
        """Give every running sample a page for its next token. False if nobody runs any more.

        Where pages are short, they come from samples that turn out to be finished, then by preemption.
        """
        while not scheduler.grow():
            if flight:
                self._collect(scheduler, flight.popleft(), on_finish)
            else:
                scheduler.preempt()
        return bool(scheduler.running.any())

    def _collect(self, scheduler: Scheduler, launched: _Launched, on_finish: Callable | None) -> None:
        """Read a launched step's tokens and finish whom they finish."""
        tokens, logprobs = launched.read()
        for sequence, token, logprob in zip(launched.sequences, tokens, logprobs, strict=True):
            if sequence.slot < 0:  # it stopped in a step before, which the host has read since
                continue
            sample, request = sequence.sample, sequence.group.request
            sample.ids.append(token)
            sample.logprobs.append(logprob)
            if token in request.stop_ids:
                sample.finish_reason = "stop"
            elif len(sample.ids) == request.max_tokens:
                sample.finish_reason = "length"
            else:
                continue
            scheduler.release(sequence)
            if on_finish:
                on_finish(sample)

    # ---- what runs on the device

    def _prefill(self, scheduler: Scheduler, admitted: list[Sequence]) -> Reader:
        """Run prompts through the model into the cache, and draw the next token of each admitted sample.

        -> a reader of those tokens, in the order of `admitted`.
        """
        contexts, context_of = self._contexts(scheduler, admitted)
        lengths = [len(context.ids) for context in contexts]
        ends = np.cumsum(lengths)

        def put(x, dtype=np.int64) -> torch.Tensor:
            return upload(np.asarray(x, dtype), self.device)

        page = put(np.concatenate([context.pages for context in contexts]))
        offset = put(np.concatenate([context.offsets for context in contexts]))
        attend = packed(put(np.append(0, ends), np.int32), max(lengths))
        ids = put(np.concatenate([context.ids for context in contexts]))
        positions = put(np.concatenate([np.arange(length) for length in lengths]))
        hidden = self.model(ids, positions, CachedAttention(self.kv, page, offset, attend))
        hidden = hidden[put(ends[context_of] - 1)]  # of the last token of each sample's context
        self.stats["prefill_tokens"] += len(ids)
        slots = np.array([sequence.slot for sequence in admitted])
        if self.graphs:
            self.graphs.write_tables(scheduler, slots)
        drawn = self._draw(hidden, Inputs.of(self._sampling(scheduler, slots), self.device))
        scheduler.drawn(slots)
        return reader(*drawn)

    def _contexts(self, scheduler: Scheduler, admitted: list[Sequence]) -> tuple[list[_Context], list[int]]:
        """The contexts of a prefill, and for each admitted sample the number of its own.

        The samples of a group that have drawn nothing yet share one. A preempted sample has one of its
        own: its tail needs the prompt, which is computed again. But a prompt that is in the cache already is
        written to the scratch page.
        """
        contexts: dict[int, _Context] = {}
        for sequence in admitted:
            if _context_key(sequence) in contexts:
                continue
            group, done = sequence.group, sequence.sample.ids
            prompt = np.arange(len(group.request.prompt_ids))
            tail = np.arange(len(done))
            if sequence.fills_prompt:
                prompt_pages = group.pages[prompt // self.page_size]
            else:
                prompt_pages = np.full(len(prompt), self.kv.pages)
            tail_pages = scheduler.tail_table[sequence.slot, tail // self.page_size]
            contexts[_context_key(sequence)] = _Context(
                ids=[*group.request.prompt_ids, *done],
                pages=np.concatenate([prompt_pages, tail_pages]),
                offsets=np.concatenate([prompt, tail]) % self.page_size,
            )
        number = {key: i for i, key in enumerate(contexts)}
        return list(contexts.values()), [number[_context_key(sequence)] for sequence in admitted]

    def _sampling(self, scheduler: Scheduler, slots: np.ndarray) -> dict[str, np.ndarray]:
        """What drawing a token needs, by row: fields of Inputs."""
        out = {
            "slot": slots,
            "temperature": scheduler.temperature[slots],
            "u": uniforms(scheduler.seed[slots], scheduler.count[slots]),
        }
        if (scheduler.top_k[slots] > 0).any() or (scheduler.top_p[slots] < 1).any():
            out |= {"top_k": scheduler.top_k[slots], "top_p": scheduler.top_p[slots]}
        return out

    def _decode(self, scheduler: Scheduler, slots: np.ndarray) -> Reader:
        """One token more for each of these slots: feed the newest, whose key and value go to its tail.

        -> a reader of the tokens, in the order of `slots`.
        """
        lines, rows = scheduler.tiles(slots, self.per_tile)
        tail = scheduler.count[slots]  # the token being fed is the last of the tail
        page_index, offset = np.divmod(tail - 1, self.page_size)
        arrays = self._sampling(scheduler, slots) | {
            "position": scheduler.prompt_len[slots] + tail - 1,
            "tail_len": tail,
            "page_index": page_index,
            "page": scheduler.tail_table[slots, page_index],
            "offset": offset,
            "tile_group": lines,
            "tile_len": scheduler.prompt_len[slots[rows[:, 0]]],  # all rows of a tile have one prompt
            "tile_rows": rows,
        }
        self.stats["decode_steps"] += 1
        self.stats["decode_rows"] += len(slots)
        scheduler.drawn(slots)
        if self.graphs:
            return self.graphs.run(arrays, self.kv.pages)
        tables = torch.from_numpy(scheduler.tail_table), torch.from_numpy(scheduler.prefix_table)
        return reader(*self.step(Inputs.of(arrays, self.device), *tables))

    def step(
        self, inputs: Inputs, tail_table: torch.Tensor, prefix_table: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The device's part of a decode step -> tokens [B] int64 and logprobs [B] fp32.

        The tables of pages are [slots, W] and [groups, W] int32. On CUDA nothing is waited for.
        """
        batch = DecodeBatch(
            inputs.slot,
            inputs.tail_len,
            tail_table,
            inputs.tile_group,
            inputs.tile_len,
            inputs.tile_rows,
            prefix_table,
        )

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return decode_attention(q, *self.kv.layer(layer), batch)

        cached = CachedAttention(self.kv, inputs.page, inputs.offset, attend)
        return self._draw(self.model(self.last[inputs.slot], inputs.position, cached), inputs)

    def _draw(self, hidden: torch.Tensor, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        """hidden [B, hidden_size] -> tokens, logprobs [B], from fp32 logits. Each slot keeps its newest."""
        weight = self.model.head_weight
        if hidden.is_cuda and hidden.dtype == weight.dtype != torch.float32:
            logits = torch.mm(hidden, weight.t(), out_dtype=torch.float32)
        else:
            logits = hidden.float() @ weight.float().t()
        tokens, logprobs = sample_tokens(
            logits, inputs.temperature, inputs.u, self.valid_vocab, inputs.top_k, inputs.top_p
        )
        self.last[inputs.slot] = tokens
        return tokens, logprobs


if __name__ == "__main__":
    runpy.run_module("nanotriton.complete", run_name="__main__")  # the command that looks at a model
