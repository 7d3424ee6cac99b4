"""What a checkpoint holds besides weights comes back as it was: the prefetched batch, and the state."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_sdk import Item, Score
from tinyzero_trainer.checkpoint.store import DamagedCheckpointError
from tinyzero_trainer.controller.length_control import LengthControlState
from tinyzero_trainer.controller.rollout_batch import RolloutBatch, from_json, load_batch, to_json
from tinyzero_trainer.controller.state import TrainerState
from tinyzero_trainer.data.prompts import StreamState
from tinyzero_trainer.types import Generation, Prompt, Rollout

NUMBERS = st.floats(allow_nan=False)
TEXTS = st.text()  # half a surrogate pair among them


def batch_of(samples: list[Rollout], greedy_rewards: list[float] | None = None) -> RolloutBatch:
    return RolloutBatch(
        step=3,
        version=1,
        rollouts=samples,
        kept=samples[len(samples) // 2 :],
        greedy_rewards=greedy_rewards,
        max_tokens=8,
        length_control=LengthControlState(max_tokens=5, success_rate=1 / 3),
        progress={"toy": StreamState(7, 1, 5, (2, 1), (0.25, None))},
        curriculum_metrics={"curriculum/bucket_0/weight": 0.1},
        seconds={"gen": 0.1 + 0.2},
    )


@given(
    logprobs=st.lists(st.floats(), min_size=1, max_size=4),
    texts=st.lists(st.text(st.characters(codec=None)), min_size=4, max_size=4),
    truth=st.recursive(st.none() | st.booleans() | st.integers() | NUMBERS | TEXTS, st.lists, max_leaves=4),
    greedy=st.none() | st.lists(NUMBERS, max_size=2),
    value=NUMBERS,
)
def test_a_saved_batch_is_the_same_batch(logprobs, texts, truth, greedy, value):
    prompts = [Prompt(Item(truth, {"n": truth}), text, [1, 2], "toy", 3) for text in texts[:2]]
    samples = [
        Rollout(
            prompt,
            Generation([7] * len(logprobs), logprobs, text == ""),
            text,
            Score(value, True, "ok", text, {"task": value}, masked=text == ""),
        )
        for prompt in prompts
        for text in texts
    ]
    batch = batch_of(samples, greedy)
    text = to_json(batch)
    found = from_json(text)
    assert repr(found) == repr(batch)  # where NaN equals NaN
    assert len({id(sample.prompt) for sample in found.rollouts}) == 2
    assert all(sample is found.rollouts[place] for sample, place in zip(found.kept, range(4, 8), strict=True))
    assert len(json.loads(text)["prompts"]) == 2


@pytest.mark.parametrize(
    "metrics", [None, {"critic/score/mean": 0.1, "actor/grad_norm": math.inf, "actor/pg_loss": math.nan}]
)
def test_the_state_survives_a_checkpoint(metrics: dict[str, float] | None, tmp_path: Path) -> None:
    progress = {"toy": StreamState(7, 1, 5, (2, 1), (0.25, None)), "other": StreamState()}
    adapted = {"kl_coefficient": 0.1 + 0.2, "length_control": LengthControlState(max_tokens=64, success_rate=1 / 3)}
    state = TrainerState(3, metrics, 1e-7, cumulative_reward=-7 / 9, progress=progress, **adapted)
    state.save(tmp_path)
    assert repr(TrainerState.load(tmp_path)) == repr(state)  # where NaN equals NaN


def test_a_file_of_another_shape_is_named_in_one_line(tmp_path: Path) -> None:
    for content in ("{", '{"step": -1}'):
        (tmp_path / "state.json").write_text(content)
        (tmp_path / "next_batch.json").write_text(content)
        with pytest.raises(DamagedCheckpointError, match=r"state\.json: "):
            TrainerState.load(tmp_path)
        with pytest.raises(DamagedCheckpointError, match=r"next_batch\.json: "):
            load_batch(tmp_path / "next_batch.json")
