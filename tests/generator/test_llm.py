"""The engine in the caller's own process gives what `transformers` gives, for any number of prompts, and ends cleanly."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import AutoModelForCausalLM

from services.generator import LLM
from services.generator.core.launch import Launch
from services.generator.metrics import GeneratorMetrics
from shared.errors import EngineDeadError, InvalidRequestError
from shared.settings.errors import StartError

GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm(tiny_llama):
    with LLM(str(tiny_llama), num_threads=1, max_num_seqs=4, max_queued_requests=2, dtype="float32") as made:
        yield made


def reference(folder, prompt, num_tokens):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


def test_many_prompts_each_get_the_tokens_of_transformers(llm, tiny_llama):
    prompts = [[(7 * number + position) % 250 for position in range(3 + number)] for number in range(20)]
    generations = llm.generate(prompts, GREEDY)  # more than the engine and its queue hold at once
    assert [generation.prompt_token_ids for generation in generations] == prompts
    for prompt, generation in list(zip(prompts, generations, strict=True))[::5]:
        (choice,) = generation.choices
        assert choice.token_ids == reference(tiny_llama, prompt, 12)
        assert (choice.reason, generation.usage.completion_tokens) == ("length", 12)


def test_steps_are_counted_by_how_they_were_launched(llm):
    metrics = GeneratorMetrics()
    metrics.watch(lambda: llm.stats, num_restarts=lambda: 0, num_graphs=lambda: 7)
    read = metrics.all.registry.get_sample_value

    def counts():
        return [read("trivium_generator_steps_total", {"launch": launch}) for launch in Launch]

    llm.generate([3, 4, 5], GREEDY)
    before = counts()
    llm.generate([5, 6, 7], GREEDY)  # one step for the prompt, one for each later token
    assert dict(zip(Launch, [a - b for a, b in zip(counts(), before, strict=True)], strict=True)) == {
        Launch.REPLAY: 0,
        Launch.PROMPT: 1,
        Launch.IMAGE: 0,
        Launch.NO_GRAPH: 11,
    }
    assert read("trivium_generator_step_graphs") == 7


def test_a_text_a_list_of_ids_and_a_list_of_texts_are_prompts(llm):
    (text,) = llm.generate("hello", GREEDY)
    (ids,) = llm.generate(text.prompt_token_ids, GREEDY)
    several = llm.generate(["hello", "you"], {**GREEDY, "n": 2, "logprobs": 1})
    assert text.text == ids.text == several[0].choices[1].text
    assert [len(choice.tokens) for choice in several[1].choices] == [12, 12]
    assert llm.num_tokens("hello") == len(text.prompt_token_ids)
    assert llm.generate([], GREEDY) == []


def test_one_conversation_or_several(llm):
    conversations = [[{"role": "user", "content": word}] for word in ("hello", "you")]
    several = llm.chat(conversations, GREEDY)
    (one,) = llm.chat(conversations[1], GREEDY)
    assert [one.text] == [several[1].text]


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"stream": True}, "stream"),
        ({"no_such": 1}, "no_such"),
        ({1: 1}, "1"),
        ({"prompt": "other"}, "prompt"),
        ({"stop": {"a"}}, "stop"),
        ("greedy", "sampling"),
    ],
)
def test_a_wrong_field_is_named(llm, sampling, field):
    with pytest.raises(InvalidRequestError, match=field):
        llm.generate("hello", sampling)


@pytest.mark.parametrize(
    "prompt", [None, 5, True, {"a": 1}, {"a"}, b"a", range(3), "\ud800", [["a", "b"]], [1, "a"], [1, True], [1, -1]]
)
def test_what_is_no_prompt_is_refused(llm, prompt):
    with pytest.raises(InvalidRequestError, match=r"^prompt: "):
        llm.generate(prompt, GREEDY)


@pytest.mark.parametrize("messages", [None, 5, "hello", {"role": "user"}, [{"role": "user", "content": "\ud800"}]])
def test_what_is_no_conversation_is_refused(llm, messages):
    with pytest.raises(InvalidRequestError, match=r"^messages: "):
        llm.chat(messages, GREEDY)


def test_tuples_and_numbers_as_keys_are_taken_as_json_takes_them(llm):
    (biased,) = llm.generate((5, 6, 7), {**GREEDY, "logit_bias": {9: 100.0}})
    assert biased.prompt_token_ids == [5, 6, 7]
    assert biased.choices[0].token_ids == [9] * 12


def test_calls_of_several_threads_wait_for_each_other(llm):
    expected = [generation.text for generation in llm.generate(["hello"] * 8, GREEDY)]
    with ThreadPoolExecutor(4) as pool:  # 32 requests and 2 answers to each, where 6 fit
        calls = [pool.submit(llm.generate, ["hello"] * 8, {**GREEDY, "n": 2}) for _ in range(4)]
        assert [[generation.text for generation in call.result(60)] for call in calls] == [expected] * 4


def test_it_can_be_called_while_an_event_loop_runs(llm):
    async def call():
        return llm.generate("hello", GREEDY)

    assert asyncio.run(call())[0].text == llm.generate("hello", GREEDY)[0].text


def test_a_prompt_that_cannot_be_served_gives_up_the_others(llm):
    with pytest.raises(InvalidRequestError, match="prompt"):
        llm.generate(["hello", ""], GREEDY)
    assert llm.generate("hello", GREEDY)[0].choices[0].reason == "length"


def test_a_model_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(StartError, match="neither a folder"):
        LLM(str(tmp_path / "nowhere"))


def test_closing_ends_every_thread(tiny_llama):
    before = set(threading.enumerate())
    llm = LLM(str(tiny_llama), num_threads=1)
    llm.close()
    llm.close()
    assert not {thread for thread in set(threading.enumerate()) - before if thread.name.startswith("llm-")}


def test_closing_ends_what_runs_and_what_waits(tiny_llama):
    llm = LLM(str(tiny_llama), num_threads=1, max_num_seqs=1, max_queued_requests=0, dtype="float32")
    endless = {"max_tokens": 200, "ignore_eos": True}
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(llm.generate, ["hello"] * 1000, endless)
        while llm._handle.num_requests == 0:
            assert not call.done()
        llm.close()
        with pytest.raises(EngineDeadError):
            call.result(60)


def test_a_closed_one_says_so(tiny_llama):
    llm = LLM(str(tiny_llama), num_threads=1)
    llm.close()
    for prompts in ("hello", []):
        with pytest.raises(EngineDeadError, match="closed"):
            llm.generate(prompts)


def test_an_engine_that_cannot_start_says_why(tiny_llama):
    with pytest.raises(StartError, match="needs 16 KV blocks, but there is memory for 3"):
        LLM(str(tiny_llama), num_gpu_blocks_override=3)
