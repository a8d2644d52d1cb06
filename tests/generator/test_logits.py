"""Penalties, biases, masks, bad words and minimum length against plain Python, through the tables that plans fill."""

import random

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from services.generator.core.plan import features_of
from services.generator.core.request import Request, SamplingParams
from services.generator.core.sequence import Sequence
from services.generator.layers.reference_kernels import ReferenceKernels
from services.generator.runner.sampler import Sampler, logprobs_of
from services.generator.scheduler.row_states import row_states, union

VOCAB = 70
DEVICE = torch.device("cpu")


def make_sequence(params, prompt, output=()):
    sequence = Sequence(Request("f", 0, list(prompt), params))
    sequence.output_token_ids = list(output)
    return sequence


def choose(sequences, logits, sampler=None, row_numbers=None):
    """Greedy tokens for `sequences` as rows of one step, and the sampler."""
    rows = np.array(row_numbers if row_numbers is not None else range(len(sequences)), np.int32)
    sampler = sampler or Sampler(80, VOCAB, DEVICE, ReferenceKernels())
    sampler.begin_rows(row_states(sequences, rows, VOCAB))
    features = union(s.features for s in sequences)
    positions = torch.tensor([s.num_known_tokens for s in sequences])
    uniforms = None if features.is_greedy else torch.from_numpy(sampler.uniforms(rows, positions.numpy()))
    return sampler(logits, features, torch.from_numpy(rows).long(), positions, uniforms=uniforms), sampler


def expected_logits(params, prompt, output, logits):
    """What the fields mean, written out."""
    logits = [float(x) for x in logits]
    for token in set(prompt) | set(output):
        r = params.repetition_penalty
        logits[token] = logits[token] / r if logits[token] > 0 else logits[token] * r
    for token in set(output):
        logits[token] -= params.presence_penalty + params.frequency_penalty * output.count(token)
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    if params.allowed_token_ids is not None:
        logits = [x if t in params.allowed_token_ids else float("-inf") for t, x in enumerate(logits)]
    for word in params.bad_words:
        if list(word[:-1]) == (prompt + output)[len(prompt) + len(output) - len(word) + 1 :]:
            logits[word[-1]] = float("-inf")
    if len(output) < params.min_tokens:
        for token in params.stop_token_ids:
            logits[token] = float("-inf")
    return logits


def random_params(rng):
    def maybe(value, default):
        return value if rng.random() < 0.5 else default

    ids = list(range(VOCAB))
    return SamplingParams(
        max_tokens=9,
        temperature=0,
        repetition_penalty=maybe(rng.uniform(0.5, 2), 1.0),
        presence_penalty=maybe(rng.uniform(-2, 2), 0.0),
        frequency_penalty=maybe(rng.uniform(-2, 2), 0.0),
        logit_bias=maybe({t: rng.uniform(-5, 5) for t in rng.sample(ids, 5)}, {}),
        allowed_token_ids=maybe(rng.sample(ids, 40), None),
        bad_words=maybe([[rng.randrange(8) for _ in range(rng.randint(1, 3))] for _ in range(6)], []),
        stop_token_ids=frozenset(rng.sample(ids, 3)),
        min_tokens=maybe(rng.randint(1, 6), 0),
    )


@pytest.mark.parametrize("seed", range(30))
def test_any_mixture_of_rows_against_plain_python(seed):
    rng = random.Random(seed)
    count = rng.randint(1, 9)
    sequences, logits = [], torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    for _ in range(count):
        prompt = [rng.randrange(8) for _ in range(rng.randint(1, 12))]
        output = [rng.randrange(8) for _ in range(rng.randint(0, 6))]
        sequences.append(make_sequence(random_params(rng), prompt, output))
    row_numbers = rng.sample(range(80), count)
    tokens, sampler = choose(sequences, logits, row_numbers=row_numbers)
    for index, sequence in enumerate(sequences):
        params, prompt, output = sequence.request.sampling, sequence.request.prompt_token_ids, sequence.output_token_ids
        wanted = expected_logits(params, prompt, output, logits[index])
        assert wanted[int(tokens[index])] == pytest.approx(max(wanted), abs=1e-4)
    # A second step continues from what the device remembers of the first one.
    again = torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed + 1000)) * 3
    features = union(s.features for s in sequences)
    positions = torch.tensor([s.num_known_tokens + 1 for s in sequences])
    second = sampler(again, features, torch.tensor(row_numbers), positions)
    for index, sequence in enumerate(sequences):
        params, prompt = sequence.request.sampling, sequence.request.prompt_token_ids
        output = [*sequence.output_token_ids, int(tokens[index])]
        wanted = expected_logits(params, prompt, output, again[index])
        assert wanted[int(second[index])] == pytest.approx(max(wanted), abs=1e-4)


def bit_masks(allowed):
    """[N, ceil(V / 32)] from the ids that each row may choose."""
    bits = np.zeros((len(allowed), -(-VOCAB // 32) * 32), np.uint8)
    for row, ids in enumerate(allowed):
        bits[row, list(ids)] = 1
    return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))


@pytest.mark.parametrize("seed", range(10))
def test_a_grammar_restricts_what_the_other_changes_leave_and_touches_no_other_row(seed):
    rng = random.Random(seed)
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    sequences = [make_sequence(random_params(rng), [1, 2], [3]) for _ in range(4)]
    without, _ = choose(sequences, logits)
    allowed = [range(VOCAB), rng.sample(range(VOCAB), 30), range(VOCAB), [rng.randrange(VOCAB)]]
    features = union(s.features for s in sequences)
    sampler = Sampler(80, VOCAB, DEVICE, ReferenceKernels())  # the one above has noted what it chose
    sampler.begin_rows(row_states(sequences, np.arange(4, dtype=np.int32), VOCAB))
    tokens = sampler(logits, features, torch.arange(4), torch.full((4,), 3), masks=bit_masks(allowed)).tolist()
    assert [tokens[0], tokens[2]] == [int(without[0]), int(without[2])]
    wanted = expected_logits(sequences[1].request.sampling, [1, 2], [3], logits[1])
    best = max(wanted[token] for token in allowed[1])
    assert tokens[1] in allowed[1]
    assert wanted[tokens[1]] == pytest.approx(best, abs=1e-4)
    assert tokens[3] == allowed[3][0]  # whatever the request's own fields say


def test_drawn_tokens_of_a_free_row_do_not_depend_on_grammars_beside_it():
    params = SamplingParams(max_tokens=9, temperature=1.0, seed=11, top_p=0.9)
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(0)).expand(2, VOCAB)
    features, rows = features_of(params), torch.arange(2)
    _, sampler = choose([make_sequence(params, [1])] * 2, logits)
    for position in range(50):
        positions = torch.full((2,), position)
        uniforms = torch.from_numpy(sampler.uniforms(rows.numpy(), positions.numpy()))
        free = sampler(logits, features, rows, positions, uniforms=uniforms)
        masks = bit_masks([range(VOCAB), [7, 9]])
        masked = sampler(logits, features, rows, positions, uniforms=uniforms, masks=masks)
        assert int(masked[0]) == int(free[0])
        assert int(masked[1]) in (7, 9)


def test_rows_that_draw_are_not_taken_for_greedy_ones():
    params = SamplingParams(max_tokens=9, temperature=1.0, seed=11)
    sampler, rows = Sampler(80, VOCAB, DEVICE, ReferenceKernels()), torch.arange(1)
    with pytest.raises(ValueError, match="all that draw need them"):
        sampler(torch.zeros(1, VOCAB), features_of(params), rows, rows)


def test_a_row_that_begins_anew_remembers_nothing_of_the_one_before():
    heavy = SamplingParams(
        max_tokens=1,
        temperature=0,
        presence_penalty=2,
        logit_bias={5: 50},
        allowed_token_ids=[5],
        bad_words=[[7]],
        stop_token_ids=frozenset([9]),
        min_tokens=5,
    )
    logits = torch.zeros(1, VOCAB)
    logits[0, 7] = 1
    _, sampler = choose([make_sequence(heavy, [1, 2], [3])], logits)
    plain = SamplingParams(max_tokens=1, temperature=0)
    for _ in range(2):  # the second finds a row that was cleaned already
        sampler.begin_rows(row_states([make_sequence(plain, [1])], np.array([0], np.int32), VOCAB))
        everything = features_of(heavy)  # which some other row of the step has
        assert sampler(logits, everything, torch.tensor([0]), torch.tensor([1])).tolist() == [7]
    tokens, _ = choose([make_sequence(heavy, [1, 2], [3])], logits, sampler)
    assert tokens.tolist() == [5]
    with_penalty = SamplingParams(max_tokens=1, temperature=0, presence_penalty=2)
    tokens, _ = choose([make_sequence(with_penalty, [7], [])], logits, sampler)
    assert tokens.tolist() == [7]


class CountOperations(TorchDispatchMode):
    """Counts the tensor operations that run below it; a view runs nothing."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += "aten.view" not in str(func)
        return func(*args, **(kwargs or {}))


def test_rows_without_lists_begin_by_few_operations():
    """Each is a launch before the forward pass of a step in which some request begins, and hardly one has lists."""
    sampler = Sampler(80, VOCAB, DEVICE, ReferenceKernels())
    params = SamplingParams(max_tokens=9, temperature=0.7, top_p=0.9, seed=3, stop_token_ids=frozenset([2]))
    states = row_states([make_sequence(params, [1])] * 2, np.array([4, 7], np.int32), VOCAB)
    with CountOperations() as counter:
        sampler.begin_rows(states)
    assert counter.count <= 6  # each write makes its indices int64 first


def test_logprobs_are_those_of_the_model():
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0)) * 4
    found = logprobs_of(logits, torch.tensor([0, 5, 69]), 4)
    exact = torch.log_softmax(logits.double(), -1)
    assert torch.allclose(found.chosen.double(), exact[[0, 1, 2], [0, 5, 69]], atol=1e-5)
    assert torch.equal(found.top_ids, exact.topk(4).indices)
    assert torch.allclose(found.top.double(), exact.topk(4).values, atol=1e-5)


def test_the_number_of_operations_does_not_depend_on_the_number_of_rows():
    params = SamplingParams(
        max_tokens=9,
        temperature=0.7,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        seed=3,
        repetition_penalty=1.1,
        frequency_penalty=0.5,
        logit_bias={3: 1.0},
        allowed_token_ids=list(range(50)),
        bad_words=[[1, 2]],
        stop_token_ids=frozenset([4]),
        min_tokens=2,
        logprobs=3,
    )
    counts = []
    for num_rows in (1, 8, 64):
        sequences = [make_sequence(params, [1, 2], [3]) for _ in range(num_rows)]
        logits = torch.randn(num_rows, VOCAB)
        _, sampler = choose(sequences, logits)
        rows, positions = torch.arange(num_rows), torch.full((num_rows,), 4)
        with CountOperations() as counter:
            masks = torch.full((num_rows, -(-VOCAB // 32)), -1, dtype=torch.int32)
            uniforms = torch.from_numpy(sampler.uniforms(rows.numpy(), positions.numpy()))
            tokens = sampler(logits, features_of(params), rows, positions, uniforms=uniforms, masks=masks)
            logprobs_of(logits, tokens, 3)
        counts.append(counter.count)
    assert len(set(counts)) == 1
