"""Who writes candidates: a model with our own sampler, or a server. Both answer prompts."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from nanotriton import log
from nanotriton.config import ConfigError
from nanotriton.endpoint.answer import Later, Refused
from nanotriton.endpoint.client import Client
from nanotriton.rules.extract import opened_reasoning
from nanotriton.tasks.prompt import Prompt, encode_text, text_of


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn. max_tokens: the longest. variables: for the model's chat template."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 4096
    variables: dict = field(default_factory=dict)

    def parameters(self, seed: int) -> dict[str, Any]:
        """As a chat-completions server takes them."""
        found = {
            "seed": seed % 2**31,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_tokens,
        }
        if self.variables:
            found["chat_template_kwargs"] = self.variables  # as vLLM and SGLang call them
        return found


@dataclass(frozen=True)
class Written:
    """One answer.

    finish_reason: stop, length, or what a server says; None: it says nothing. tokens: of the answer, if that
    is known. error: why there is no whole answer. failed: that is not the model's doing, but the server did
    not answer.
    """

    text: str = ""
    finish_reason: str | None = None
    tokens: int | None = None
    error: str = ""
    failed: bool = False


class Writer(Protocol):
    """name: what the answers are said to come from. converses: it can be told what was wrong with an answer;
    else it only draws another one.
    """

    name: str
    converses: bool

    def write(self, prompts: Sequence[Prompt], seeds: Sequence[int]) -> list[Written]:
        """An answer to each prompt, drawn with its seed."""


class ModelWriter:
    """A model in a folder, sampled here.

    device, dtype: of the model. Raises ModelError for a folder that can't be used.
    """

    def __init__(self, folder: str, device, dtype, sampling: Sampling):
        from nanotriton.sampler.sampler import Sampler  # here, as a server needs no torch
        from nanotriton.transformer.tokenizer import Tokenizer
        from nanotriton.transformer.weights import load_model

        self.name, self.sampling = folder, sampling
        self.tokenizer = Tokenizer(folder, variables=sampling.variables)
        self.converses = self.tokenizer.has_chat_template
        model, _ = load_model(folder, dtype, device)
        self.sampler = Sampler(model.requires_grad_(False), valid_vocab=self.tokenizer.vocab_size)
        self.longest = self.sampler.config.max_position_embeddings

    def write(
        self,
        prompts: Sequence[Prompt],
        seeds: Sequence[int],
        tell: Callable[[int, Written], None] = lambda place, written: None,
    ) -> list[Written]:
        """An answer to each prompt; equal prompts share their prefill.

        tell: is called with the place of each answer and the answer, as soon as it is there.
        Raises ConfigError (one line) if the sampler can't take the requests.
        """
        places: dict[str, list[int]] = {}  # of the answers to each text
        for place, prompt in enumerate(prompts):
            places.setdefault(text_of(prompt, self.tokenizer), []).append(place)
        written: dict[int, Written] = {}

        def keep(place: int, answer: Written) -> None:
            written[place] = answer
            tell(place, answer)

        requests, asked = [], []
        for text, wanted in places.items():
            ids = encode_text(text, self.tokenizer)
            if len(ids) < self.longest:
                requests.append(self._request(ids, [seeds[place] for place in wanted]))
                asked.append((text, wanted))
                continue
            # the model has no room to answer: that counts as its answer
            error = f"the prompt of {len(ids)} tokens leaves no room in the model's {self.longest}"
            for place in wanted:
                keep(place, Written("", "length", 0, error))

        with log.bar(total=len(prompts) - len(written), desc="sampling") as progress:

            def finished(sample) -> None:
                text, wanted = asked[sample.request]
                keep(wanted[sample.index], self._written(text, sample))
                progress.update()

            try:
                self.sampler.generate(requests, on_finish=finished)
            except ValueError as error:
                raise ConfigError(f"--model {self.name}: {error}") from None
        self.sampler.free()  # the judge wants the memory
        return [written[place] for place in range(len(prompts))]

    def close(self) -> None:
        """Let go of the model and of all the sampler's memory."""
        self.sampler.close()

    def _request(self, ids: list[int], seeds: list[int]):
        from nanotriton.sampler.sampler import Request

        return Request(
            ids,
            n=len(seeds),
            max_tokens=min(self.sampling.max_tokens, self.longest - len(ids)),
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            stop_ids=frozenset(self.tokenizer.eos_ids),
            seeds=seeds,
        )

    def _written(self, prompt: str, sample) -> Written:
        """What a sample of this prompt says, behind the reasoning that the prompt has opened."""
        ended = sample.finish_reason == "stop"
        text = opened_reasoning(prompt) + self.tokenizer.decode(sample.ids[:-1] if ended else sample.ids)
        limit = "--max-tokens" if len(sample.ids) == self.sampling.max_tokens else "the model's context"
        error = "" if ended else f"it was cut after {len(sample.ids)} tokens ({limit})"
        return Written(text, sample.finish_reason, len(sample.ids), error)


class EndpointWriter:
    """A model behind a server. concurrency: requests at a time."""

    converses = True

    def __init__(self, client: Client, sampling: Sampling, concurrency: int = 16):
        self.client, self.name = client, client.model
        self.sampling, self.concurrency = sampling, concurrency

    def write(self, prompts: Sequence[Prompt], seeds: Sequence[int]) -> list[Written]:
        """An answer to each prompt. Raises ConfigError if the server answers no request at all."""
        with ThreadPoolExecutor(min(self.concurrency, len(prompts))) as pool:
            return list(pool.map(self._ask, prompts, seeds))

    def _ask(self, prompt: Prompt, seed: int) -> Written:
        try:
            answer = self.client.ask(prompt.dicts(), **self.sampling.parameters(seed))
        except Refused as error:
            return Written(finish_reason="refused", error=f"the server refused: {error}")
        except Later as error:
            return Written(error=f"the server did not answer: {error}", failed=True)
        error = answer.error or ("it was cut (--max-tokens)" if answer.finish_reason == "length" else "")
        return Written(answer.text, answer.finish_reason, answer.tokens, error)
