"""The rank-r side of an adapted embedding against A times a one-hot vector."""

import torch

from services.generator.kernels.lora_lookup import lora_lookup

NUM_SLOTS, MAX_RANK, VOCAB = 5, 8, 33


def test_against_the_one_hot_product():
    """Rows without an adapter and ranks beyond the slot's are zeros, whatever the scratch and the bank hold there."""
    torch.manual_seed(0)
    ranks = torch.tensor([[3], [0], [8], [1], [5]], dtype=torch.int32)
    a = torch.randn(NUM_SLOTS, 1, MAX_RANK, VOCAB)
    for slot, rank in enumerate(ranks[:, 0].tolist()):
        a[slot, :, rank:] = torch.nan
    row_slots = torch.tensor([2, -1, 0, 0, 1, 4, -1, 3, 2], dtype=torch.int32)
    token_ids = torch.randint(VOCAB, (len(row_slots),))
    h = torch.full((len(row_slots), 1, MAX_RANK), torch.nan)
    lora_lookup(h, token_ids, row_slots, a, ranks)
    one_hot = torch.nn.functional.one_hot(token_ids, VOCAB).double()
    for t, slot in enumerate(row_slots.tolist()):
        rank = int(ranks[slot, 0]) if slot >= 0 else 0
        expected = a[slot, 0, :rank].double() @ one_hot[t]
        torch.testing.assert_close(h[t, 0, :rank].double(), expected, rtol=1e-6, atol=1e-6)
        assert not h[t, 0, rank:].any()
