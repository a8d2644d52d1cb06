"""The engine in the caller's own process gives what `transformers` gives, for any number of prompts, and ends cleanly."""

import threading

import pytest
import torch
from transformers import AutoModelForCausalLM

from services.generator import LLM
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
        ({"stream": True}, "stream"),
        ({"no_such": 1}, "no_such"),
        ({"lora": "a"}, "lora"),
        ({"prompt": "x"}, "prompt"),
    ],
)
def test_a_wrong_field_is_named(llm, sampling, field):
    with pytest.raises(InvalidRequestError, match=field):
        llm.generate("hello", sampling)


def test_a_prompt_that_cannot_be_served_gives_up_the_others(llm):
    with pytest.raises(InvalidRequestError, match="prompt"):
        llm.generate(["hello", ""], GREEDY)
    assert llm.generate("hello", GREEDY)[0].choices[0].reason == "length"


def test_a_list_of_texts_is_not_one_prompt(llm):
    with pytest.raises(InvalidRequestError, match="prompt"):
        llm.generate([["a", "b"]], GREEDY)
    assert llm.chat([], GREEDY) == []


def test_a_model_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(StartError, match="neither a folder"):
        LLM(str(tmp_path / "nowhere"))


def test_closing_ends_every_thread(tiny_llama):
    before = set(threading.enumerate())
    llm = LLM(str(tiny_llama), num_threads=1)
    llm.close()
    llm.close()
    with pytest.raises(EngineDeadError):
        llm.generate("hello", GREEDY)
    assert not {thread for thread in set(threading.enumerate()) - before if thread.name.startswith("llm-")}


def test_an_engine_that_cannot_start_says_why(tiny_llama):
    with pytest.raises(StartError, match="needs 16 KV blocks, but there is memory for 3"):
        LLM(str(tiny_llama), num_gpu_blocks_override=3)
