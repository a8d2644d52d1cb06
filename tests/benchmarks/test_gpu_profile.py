"""What the profile says of a trace whose times are known."""

import re

import pytest

from benchmarks.gpu.spans import Span, call_table, family_of, one_after_another, step_table
from services.generator.kernels.argmax import _argmax_kernel
from services.generator.kernels.lora_expand import _lora_expand_tiles_kernel
from services.generator.kernels.lora_shrink import _lora_shrink_rows_kernel
from services.generator.kernels.lora_silu_mul import _lora_silu_mul_rows_kernel
from services.generator.kernels.sample import _sample_kernel


def test_time_in_which_spans_overlap_counts_once():
    spans = [Span("a", 0, 10), Span("b", 5, 8), Span("c", 7, 20), Span("d", 30, 60)]
    expected = [Span("a", 0, 10), Span("c", 10, 20), Span("d", 30, 40)]
    assert one_after_another(spans, until=40) == expected


@pytest.mark.parametrize(
    ("kernel", "family"),
    [
        (_lora_shrink_rows_kernel.__name__, "LoRA, rank-r side"),
        (_lora_expand_tiles_kernel.__name__, "LoRA, wide side, with its activation"),
        (_lora_silu_mul_rows_kernel.__name__, "LoRA, wide side, with its activation"),
        ("_attention_decode_kernel", "attention"),
        ("nvjet_tst_64x64_64x13_v_bz_TNN", "products"),
        (_argmax_kernel.__name__, "choice of the token, indices, copies"),
        (_sample_kernel.__name__, "choice of the token, indices, copies"),
        ("something_else", "other"),
    ],
)
def test_kernels_are_known_by_their_names(kernel, family):
    assert family_of(kernel) == family


@pytest.mark.parametrize("choice", [_argmax_kernel, _sample_kernel])
def test_a_step_is_from_one_choice_to_the_next(choice):
    step = [(choice.__name__, 0, 100), ("nvjet_a", 100, 3000), ("_rms_norm_kernel", 2900, 3500), ("odd", 3600, 4000)]
    spans = [Span(name, 4000 * number + start, 4000 * number + end) for number in range(3) for name, start, end in step]
    lines = "\n".join(step_table(spans))
    for expected in (r"products +2.900 ms", r"activation +0.500 ms", r"indices, copies +0.100 ms", r"other +0.400 ms"):
        assert re.search(expected, lines)
    assert "4.000 ms, mean of 2; the device is busy for 97.5%" in lines


def test_a_call_is_what_lies_between_its_ends():
    call = Span("generate", 1000, 11_000)
    spans = [("nvjet_a", 900, 950), ("nvjet_a", 2000, 6000), ("_attention", 5000, 8000), ("nvjet_a", 9000, 9500)]
    lines = "\n".join(call_table(call, [Span(*span) for span in (*spans, ("nvjet_a", 12_000, 13_000))]))
    for expected in (r"products +4.500 ms", r"attention +2.000 ms", r"generate +10.000 ms", r"first kernel +1.000 ms"):
        assert re.search(expected, lines)
    assert re.search(r"after the last one +1.500 ms", lines)
    assert re.search(r"between +7.500 ms; the device is busy for 86.7%", lines)
    with pytest.raises(SystemExit, match="nothing was traced"):
        call_table(call, [])
