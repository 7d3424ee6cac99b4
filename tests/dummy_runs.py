"""Run directories of any size, as `tinyzero train` leaves them; the same for the same arguments."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GROUP = 8  # completions of a problem in a step
HELD_OUT = 64  # problems of each evaluation
LEVELS = (3, 4, 5)
_TRAIN_PROBLEMS = 2000
_WORDS = ("let", "me", "try", "then", "so", "that", "is", "not", "it", "multiply", "add", "too", "large", "small")


def write_run(path: Path, *, steps: int, completions: int, seed: int = 0, tokens: bool = True) -> Path:
    """A run directory with `completions` completions, a quarter of them from evaluations every `steps` / 20 steps."""
    dice = np.random.default_rng(seed)
    path.mkdir(parents=True)
    skill = 0.12 + 0.68 / (1 + np.exp(-(np.arange(steps + 1) / steps - 0.35 - 0.1 * seed) * 8))
    every = max(1, steps // 20)
    with (path / "metrics.jsonl").open("w") as file:
        for step in range(steps + 1):
            file.write(
                json.dumps(_metrics(step, steps, float(skill[step]), dice, is_evaluated=step % every == 0)) + "\n"
            )
    config = {
        "run": f"output = '{path.name}'\nseed = {seed}\nsteps = {steps}",
        "optimizer": f"learning_rate = {1e-6 * (1 + seed)}",
    }
    config |= {
        "tasks.countdown": "task = 'countdown'\nweight = 1.0",
        "rollout": f"group_size = {GROUP}\ntemperature = 1.0",
    }
    (path / "config.toml").write_text("".join(f"[{name}]\n{values}\n\n" for name, values in config.items()))
    evaluated = np.arange(0, steps + 1, every)
    samples = max(1, completions // 4 // (len(evaluated) * HELD_OUT))
    held_out = np.repeat(evaluated, HELD_OUT * samples)
    problems = np.tile(np.repeat(np.arange(HELD_OUT), samples), len(evaluated))
    _write(
        path, "heldout", held_out, problems, np.tile(np.arange(samples), len(evaluated) * HELD_OUT), skill, dice, tokens
    )
    left = completions - len(held_out)
    groups = np.sort(dice.integers(1, steps + 1, max(1, left // GROUP)))
    problems = HELD_OUT + np.repeat(dice.integers(0, _TRAIN_PROBLEMS, len(groups)), GROUP)
    _write(
        path, "train", np.repeat(groups, GROUP), problems, np.tile(np.arange(GROUP), len(groups)), skill, dice, tokens
    )
    return path


def _metrics(step: int, steps: int, skill: float, dice: np.random.Generator, *, is_evaluated: bool) -> dict[str, float]:
    noise = lambda scale: float(dice.normal(0, scale))  # noqa: E731
    row: dict[str, float] = {"step": step}
    if is_evaluated:
        row |= {"val-core/countdown/acc/mean@1": min(1, max(0, skill + noise(0.01))), "val-aux/countdown/size": 1024.0}
        row |= {
            "val-aux/countdown/acc_greedy/mean@1": min(1, skill + 0.02),
            "val-aux/countdown/truncated_frac": 0.05 * (1 - skill),
        }
    if not step:
        return row
    accuracy = min(1, max(0, skill + noise(0.03)))
    row |= {
        "completion/acc_mean": accuracy,
        "critic/score/mean": accuracy + 0.05 * (1 - accuracy),
        "train/loss": 0.1 * noise(1),
    }
    row |= {"reward/no_answer_frac": 0.2 * (1 - accuracy), "reward/malformed_frac": 0.1 * (1 - accuracy) ** 2}
    row |= {"reward/error_frac": 0.0, "reward/timeout_frac": 0.0, "completion/truncated_frac": 0.15 * (1 - accuracy)}
    row |= {
        f"train/acc_by_difficulty/{level}": min(1, max(0, accuracy + 0.15 * (4 - level) + noise(0.03)))
        for level in LEVELS
    }
    row |= {
        "response_length/mean": 220 + 300 * skill + noise(12),
        "completion/correct_length_mean": 180 + 280 * skill + noise(12),
    }
    row |= {
        "group/zero_std_frac": min(1, max(0, abs(skill - 0.45) + noise(0.03))),
        "actor/entropy": 0.2 + 0.6 * (1 - skill) + noise(0.02),
    }
    row |= {
        "actor/kl_loss": 0.02 * skill + abs(noise(0.001)),
        "actor/ppo_kl": abs(noise(0.0005)),
        "actor/pg_clipfrac": abs(noise(0.01)),
    }
    row |= {
        "actor/grad_norm": 0.3 + abs(noise(0.1)) + (5 if dice.random() < 0.002 else 0),
        "actor/lr": 1e-6 * min(1, step / 20),
    }
    row |= {
        "timing_s/gen": 14 + 8 * skill + noise(0.5),
        "timing_s/update_actor": 9 + 3 * skill + noise(0.3),
        "timing_s/reward": 0.4,
    }
    row |= {
        "timing_s/old_log_prob": 2.5,
        "timing_s/step": 29.0,
        "time/elapsed_s": 29.0 * step,
        "tokens/overall_total": 120_000.0 * step,
    }
    row |= {
        "perf/throughput": 5200 + noise(200),
        "perf/max_memory_allocated_gb": 61.0 + noise(0.2),
        "perf/max_memory_reserved_gb": 68.0,
    }
    return row | {f"dummy/metric_{number:02d}": noise(1) for number in range(40)}


def _write(
    path: Path,
    split: str,
    steps: np.ndarray,
    problems: np.ndarray,
    samples: np.ndarray,
    skill: np.ndarray,
    dice: np.random.Generator,
    tokens: bool,
) -> None:
    size = len(steps)
    levels = np.array(LEVELS)[problems % len(LEVELS)]
    luck = dice.random(size)
    right = luck < np.clip(skill[steps] + 0.15 * (4 - levels) + 0.25 * np.sin(problems), 0.02, 0.98)
    reasons = np.where(
        right, "ok", np.array(["wrong", "wrong", "wrong", "malformed", "no_answer"])[dice.integers(0, 5, size)]
    )
    numbers = np.random.default_rng(7).integers(2, 99, (_TRAIN_PROBLEMS + HELD_OUT, 5))
    prompts, answers, completions = _texts(numbers[problems].tolist(), reasons.tolist(), dice)
    words = [len(text) // 5 for text in completions]
    table = pa.table(
        {
            "step": pa.array(steps, pa.int32()),
            **{
                name: pa.array([value] * size).cast(pa.dictionary(pa.int16(), pa.string()))
                for name, value in (("split", split), ("decoding", "sampled"), ("task", "countdown"))
            },
            "problem": [f"{numbers[problem][:3].tolist()} = {numbers[problem][4]}" for problem in problems.tolist()],
            "sample": pa.array(samples, pa.int32()),
            "difficulty": pa.array(levels, pa.float32()),
            "prompt": prompts,
            "completion": completions,
            "answer": pa.array(answers, pa.string()),
            "ground_truth": [
                json.dumps({"numbers": numbers[problem][:3].tolist(), "target": int(numbers[problem][4])})
                for problem in problems.tolist()
            ],
            "reason": pa.array(reasons.tolist()).dictionary_encode(),
            "score": pa.array(np.where(right, 1.0, 0.1 * (reasons == "wrong")), pa.float32()),
            "parts": pa.array(
                [[("task", float(one)), ("format", 0.1)] for one in right], pa.map_(pa.string(), pa.float32())
            ),
            "correct": right,
            "finished": dice.random(size) > 0.05,
            "num_tokens": pa.array(words, pa.int32()),
            "advantage": pa.array(right - skill[steps], pa.float32()),
            **(_of_tokens(completions, words) if tokens else {}),
        }
    )
    folder = path / "completions"
    folder.mkdir(exist_ok=True)
    pq.write_table(table, folder / f"{split}_{int(steps[0]):08d}_{int(steps[-1]):08d}.parquet", row_group_size=2000)


def _texts(
    problems: list[list[int]], reasons: list[str], dice: np.random.Generator
) -> tuple[list[str], list[str | None], list[str]]:
    """Prompts, answers and completions."""
    words, values = dice.choice(_WORDS, (5000, 14)).tolist(), dice.integers(1, 999, (5000, 4)).tolist()
    sentences = np.array([" ".join([*some, *map(str, few)]) for some, few in zip(words, values, strict=True)], object)
    prompts, answers, completions = list[str](), list[str | None](), list[str]()
    lengths = dice.integers(2, 9, len(problems))
    for place, ((a, b, c, _, e), reason) in enumerate(zip(problems, reasons, strict=True)):
        prompts.append(
            f"Using the numbers [{a}, {b}, {c}], create an equation that equals {e}. Answer in <answer> tags."
        )
        answer = f"{a} + {b} - {c}" if reason == "ok" else f"{a} * {b} + {place % 50}"
        answers.append(None if reason == "no_answer" else answer)
        thought = " ".join(sentences[dice.integers(0, len(sentences), int(lengths[place]))])
        end = "I do not know" if reason == "no_answer" else f"<answer>{answer}</answer>"
        completions.append(f"<think>{thought}</think>\n{end}")
    return prompts, answers, completions


def _of_tokens(completions: list[str], counts: list[int]) -> dict[str, list[list[float]]]:
    """The columns with a value for each token, which has five characters."""
    ends = [
        [*(5 * (token + 1) for token in range(count - 1)), len(text)]
        for text, count in zip(completions, counts, strict=True)
    ]
    values = {
        name: [
            (scale * np.random.default_rng(place).exponential(0.6, count)).round(3).tolist()
            for place, count in enumerate(counts)
        ]
        for name, scale in (("logprobs", -1), ("entropies", 1))
    }
    return {"token_ends": ends, **values}
