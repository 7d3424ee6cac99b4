"""Which slots read the beginning of their sequence in one place."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_trainer.rollout.torch.batch_state import BatchState

SLOTS = 6


@given(st.lists(st.dictionaries(st.integers(0, SLOTS - 1), st.integers(0, 2), min_size=1), max_size=8))
def test_slots_that_read_one_context_together_share_it_until_the_last_of_them_begins_anew(
    readings: list[dict[int, int]],
) -> None:
    """Each reading says of some slots which of three contexts they begin with."""
    state = BatchState(SLOTS, 1, {1}, torch.device("cpu"))
    state.clear()
    contexts: dict[int, tuple[int, int]] = {}
    for time, reading in enumerate(readings):
        firsts = {context: min(slot for slot in reading if reading[slot] == context) for context in reading.values()}
        columns = [(slot, firsts[context], 10 * time + context) for slot, context in reading.items()]
        state.share_prefixes(*torch.tensor(columns).T)
        contexts |= {slot: (time, context) for slot, context in reading.items()}
        shared = {slot: int(state.prefix_slots[slot]) for slot in range(SLOTS + 1)}
        for slot, (begun, context) in contexts.items():
            assert contexts[shared[slot]] == (begun, context)
            assert state.prefix_lengths[slot] == 10 * begun + context
        assert len({shared[slot] for slot in contexts}) == len(set(contexts.values()))
        for slot in set(shared) - set(contexts):
            assert (shared[slot], state.prefix_lengths[slot]) == (slot, 0)
