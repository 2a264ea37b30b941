"""A chat template that opens the reasoning, as R1's distillations and Qwen3-Thinking have it: a completion then holds no `<think>`, and
what was cut before `</think>` is a draft, which nobody judges: not in training, not in a benchmark, not in an audit."""

import json
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

import train_sft
from bench.channels import sources
from bench.channels.kernelbench import Config as KernelBenchConfig
from bench.channels.kernelbench import KernelBench
from bench.channels.sources import ServerOptions
from nanotriton.parallel.world import World
from nanotriton.reward.audit import read_samples
from nanotriton.rollout import judged, rollout
from nanotriton.rules.extract import extract_candidate, opened_reasoning
from nanotriton.sampler.scheduler import Sample
from nanotriton.tasks import kernelbench
from nanotriton.tasks.bpe import train_tokenizer
from nanotriton.tasks.prompt import of_text
from nanotriton.tasks.task import Task
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig
from nanotriton.transformer.tokenizer import Tokenizer
from nanotriton.transformer.weights import save_model
from nanotriton.verdict import Verdict

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
OPENS = PLAIN + "{{ '<think>\n' }}"
CLOSED = PLAIN + "{{ '<think>\n\n</think>\n\n' }}"  # Qwen3 without thinking
CODE = "import triton\n\n\nclass ModelNew:\n    pass\n"
DRAFT = f"First a draft:\n```python\n{CODE}```\nbut that forgets the mask, so let me think ag"
ANSWER = f"Hm, a mask.</think>\n```python\n{CODE}```"


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """template -> a tokenizer that has it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer([DRAFT, ANSWER, OPENS], 300, folder)

    def tokenizer(template: str) -> Tokenizer:
        (folder / "chat_template.jinja").write_text(template)
        return Tokenizer(str(folder))

    return tokenizer


@pytest.mark.parametrize(
    "template, opened", [(PLAIN, ""), (OPENS, "<think>"), (PLAIN + "<think>", "<think>"), (CLOSED, "")]
)
def test_only_a_prompt_that_ends_in_it_opens_the_reasoning(tokenizers, template, opened):
    prompt = tokenizers(template).chat([{"role": "user", "content": "Don't write <think>."}])
    assert opened_reasoning(prompt) == opened
    assert (extract_candidate(opened + DRAFT) is None) == bool(opened)
    assert extract_candidate(opened + ANSWER) == CODE


@pytest.mark.parametrize(
    "template, text, status",
    [
        (OPENS, DRAFT, "no_code"),
        (OPENS, ANSWER, "correct"),
        (PLAIN, DRAFT, "correct"),
        (CLOSED, DRAFT, "correct"),
    ],
)
def test_training_judges_what_follows_the_reasoning_and_so_does_the_audit(
    tokenizers, tmp_path, template, text, status
):
    tokenizer, submitted = tokenizers(template), []

    def generate(requests, on_finish):
        ids = tokenizer.encode(text)
        on_finish(Sample(0, 0, ids, [-1.0] * len(ids), "length"))

    def submit(task, candidate, draw):
        submitted.append(candidate)
        verdict = Future()
        verdict.set_result(Verdict("correct"))
        return verdict

    sampler = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=4096), generate=generate)
    executor = SimpleNamespace(time=False, expect=lambda tasks: None, submit=submit)
    task = Task("t", "class Model: pass")
    [[episode]] = judged(rollout([task], 1, sampler, executor, tokenizer, seeds=[[0]]))
    assert episode.verdict.status == status and submitted == [CODE] * (status == "correct")
    assert episode.ids == tokenizer.encode(text)  # what is trained on is what was sampled
    episode.reward = 1.0  # of a reward file that pays for anything
    (tmp_path / "samples.jsonl").write_text(json.dumps(episode.row(1, "train")))
    assert [s.candidate for s in read_samples(tmp_path)] == submitted


def test_sft_trains_completions_that_count_as_answers(tokenizers):
    answer, thought = f"```python\n{CODE}```", f"<think>\nHm.</think>\n```python\n{CODE}```"
    cfg = train_sft.Config(model="m", data="d", max_len=4096)

    def whole_turn(template: str, completion: str) -> str:
        tokenizer = tokenizers(template)
        [(prompt, ids)] = train_sft.encode([(of_text("Write it."), completion)], cfg, tokenizer)
        return tokenizer.decode(prompt + ids[:-1]).partition("<assistant>")[2]

    assert whole_turn(PLAIN, answer) == answer and whole_turn(PLAIN, thought) == thought
    assert whole_turn(OPENS, answer) == f"<think>\n\n</think>\n\n{answer}" == whole_turn(CLOSED, answer)
    assert whole_turn(OPENS, thought) == f"<think>\n\nHm.</think>\n```python\n{CODE}```"
    assert extract_candidate(whole_turn(OPENS, answer)) == CODE


def test_a_benchmark_samples_behind_what_the_template_opened(tokenizers, tmp_path):
    for template, opened in ((OPENS, True), (PLAIN, False)):
        tokenizer = tokenizers(template)
        config = ModelConfig(
            vocab_size=300,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=256,
        )
        save_model(Transformer(config).init_weights(0), tmp_path, tokenizer.files)
        asks = [sources.Ask("1/1", s, of_text("Write it."), s) for s in range(2)]
        texts = {}
        sources.from_model(
            str(tmp_path),
            asks,
            sources.Sampling(max_tokens=8),
            World(),
            lambda ask, text, _, texts=texts: texts.update({ask.sample: text}),
        )
        assert [texts[s].startswith("<think>") for s in range(2)] == [opened] * 2


def sample(completion: str, finish_reason: str | None) -> dict:
    return {
        "completion": completion,
        "candidate": extract_candidate(completion),
        "finish_reason": finish_reason,
    }


def test_an_endpoints_answers_together_tell_which_were_cut_in_their_reasoning():
    draft, ended, unknown, answer = (
        sample(DRAFT, "length"),
        sample(DRAFT, "stop"),
        sample(DRAFT, None),
        sample(ANSWER, "stop"),
    )
    assert sources.cut_in_reasoning([draft, ended, unknown]) == []  # a model that doesn't reason
    assert sources.cut_in_reasoning([draft, ended, unknown, answer]) == [draft, unknown]
    parsed = sample("<think>Hm.</think>\n" + DRAFT, "length")  # the server took the reasoning out by itself
    assert sources.cut_in_reasoning([draft, parsed]) == []


def test_a_benchmark_judges_no_draft_of_an_endpoint(monkeypatch, tmp_path):
    problem = kernelbench.Problem(1, 1, Task("1_One", "class Model: pass\n"))
    answers = {0: (DRAFT, "length"), 1: (ANSWER, "stop")}

    def run(self, asks, save):
        for ask in asks:
            text, finish_reason = answers[ask.sample]
            save(ask, text, {"finish_reason": finish_reason})
        return []

    monkeypatch.setattr(sources.Endpoint, "run", run)
    monkeypatch.setattr(
        KernelBench,
        "execute",
        lambda self, pending, policy: [
            self.save(p.name, s, policy, Verdict("correct")) for p, s, _ in pending
        ],
    )
    cfg = KernelBenchConfig(
        data="-",
        endpoint="http://x",
        server=ServerOptions(served_model="m"),
        n=2,
        policy=["strict"],
        device="cpu",
        out=str(tmp_path / "r.json"),
    )
    assert KernelBench(cfg, World(), [problem], {}, {}).go() == 0
    rows = json.loads((tmp_path / "r.json").read_text())["samples"]
    assert [row["verdicts"]["strict"]["status"] for row in rows] == ["no_code", "correct"]
    assert rows[0]["verdicts"]["strict"]["message"] == "it was cut inside its reasoning"
