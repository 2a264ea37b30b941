"""Prompts and completions: what a model is shown, and that its answer is what the extraction rule finds."""

import pytest

from nanotriton.rules.extract import extract_candidate
from nanotriton.tasks.bpe import train_tokenizer
from nanotriton.tasks.prompt import DEFAULT, build_completion, build_prompt, ids_of
from nanotriton.tasks.synthetic import generate
from nanotriton.tasks.task import Task
from nanotriton.transformer.tokenizer import Tokenizer


class ChatTokenizer:
    """The interface of nanotriton.transformer.tokenizer.Tokenizer, with a template and with characters for tokens."""

    has_chat_template = True

    def chat(self, messages):
        return "".join(f"<{m['role']}>{m['content']}</{m['role']}>" for m in messages) + "<assistant>"

    def encode(self, text):
        return [ord(c) for c in text]


@pytest.fixture(scope="module")
def tasks():
    return generate("dev", 60, 0)


@pytest.fixture(scope="module")
def tiny(tasks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer([text for t in tasks for text in (t.source, build_completion(t))], 600, folder)
    return Tokenizer(str(folder))


def test_a_chat_model_gets_the_task_inside_instructions(tasks):
    text = "".join(map(chr, build_prompt(tasks[0], ChatTokenizer())))
    assert text.startswith("<system>") and text.endswith("</user><assistant>")
    for wanted in (
        tasks[0].source.strip(),
        "ModelNew",
        "@triton.jit",
        'input_precision="ieee"',
        "```python block",
    ):
        assert wanted in text


def test_a_source_with_braces_or_template_marks_is_shown_as_it_is():
    source = "x = {'a': {1}}\ny = '{{ messages }} {source} %s'"
    assert source in "".join(map(chr, ids_of(DEFAULT.of(source), ChatTokenizer())))


def test_the_prompt_echoed_back_is_no_answer(tasks):
    """The instructions hold a fenced module, which must never count as the candidate."""
    assert extract_candidate("".join(map(chr, build_prompt(tasks[0], ChatTokenizer())))) is None


def test_a_model_without_a_template_gets_the_source_alone(tasks, tiny):
    for task in tasks:
        assert tiny.decode(build_prompt(task, tiny)) == task.source


def test_a_pretrained_model_without_a_template_gets_the_instructions_bare(tasks, tiny, monkeypatch):
    monkeypatch.setattr(tiny, "reads_source", False)
    text = tiny.decode(build_prompt(tasks[0], tiny))
    assert tasks[0].source.strip() in text and text.startswith("You are an expert") and "ModelNew" in text
    asked = []
    monkeypatch.setattr(
        tiny, "encode", lambda text, add_special_tokens=False: asked.append(add_special_tokens)
    )
    build_prompt(tasks[0], tiny)
    assert asked == [True]  # it begins as the model's texts did
    assert extract_candidate(text) is None


def test_the_completion_is_what_the_extraction_rule_finds(tasks):
    for task in tasks:
        assert extract_candidate(build_completion(task)) == task.solution


def test_the_end_token_is_left_to_the_caller(tasks, tiny):
    ids = tiny.encode(build_completion(tasks[0]))
    assert not tiny.eos_ids & set(ids)
    assert extract_candidate(tiny.decode(ids)) == tasks[0].solution


def test_a_task_without_a_solution_has_no_completion():
    with pytest.raises(ValueError, match="task mine has no solution"):
        build_completion(Task("mine", "source"))
