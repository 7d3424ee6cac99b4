"""Named one-line faults in the core, and whether the fast tests notice them.

    CHECKOUT/.venv/bin/python benchmarks/mutants.py CHECKOUT [--only rloo] [--whole]

Each fault is planted in a copy of the checkout's tracked files, and the doctests of its file and the fast tests of its
area run there; with `--whole` a fault that survives meets all fast tests of its half (`tests/trainer`, or `tests/sdk`,
`tests/adapters` and `tests/plugins`). The exit code is 1 if one survives that is not excused, or if its line is not in
the file any more: adapt it here.

`mutation_score.py` plants faults that mutmut thinks of; these are the laws by name.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import torch  # noqa: F401
import transformers  # noqa: F401
import typer

ALGORITHMS, TRAINING, REWARDS = (f"trainer/tinyzero_trainer/{name}" for name in ("algorithms", "training", "rewards"))
SCORING, TASKS = "tinyzero_sdk/scoring", "tinyzero_sdk/tasks"
TESTS = {
    ALGORITHMS: ("tests/trainer/algorithms",),
    TRAINING: ("tests/trainer/training", "tests/trainer/distributed/test_ranks.py"),
    REWARDS: ("tests/trainer/rewards",),
    SCORING: ("tests/sdk/scoring", "tests/sdk/cli/test_score.py"),
    TASKS: ("tests/sdk/tasks", "tests/sdk/data/test_build.py"),
}
"""The tests of each area."""

MOST_SECONDS = 600  # of the tests of one fault


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault: what of a file's text becomes what."""

    law: str
    file: str
    old: str
    """Occurs once in the file."""

    new: str
    excuse: str = ""
    """Why no test can see it."""


def in_file(file: str, *faults: tuple[str, ...]) -> list[Mutant]:
    return [Mutant(law, file, *texts) for law, *texts in faults]


MUTANTS = [
    *in_file(
        f"{ALGORITHMS}/advantages.py",
        ("rloo: the factor n/(n−1)", "groups.shape[1] / (groups", "1 / groups.shape[1] * (groups"),
        ("grpo: the unbiased std", "groups.std(dim=1, keepdim=True)", "groups.std(dim=1, correction=0, keepdim=True)"),
        ("gae: γ discounts the next value", "rewards + batch.gamma * next_values", "rewards + next_values"),
        ("remax: the greedy reward is subtracted", "- jagged.repeat_to_tokens(bas", "+ jagged.repeat_to_tokens(bas"),
        ("whiten: divided by the std", "+ WHITENING_EPSILON).rsqrt()", "+ WHITENING_EPSILON).sqrt()"),
    ),
    *in_file(
        f"{ALGORITHMS}/batch.py",
        ("raft: a masked completion is not accepted", "if score.correct and not score.masked]", "if score.correct]"),
        ("select: no group is known", "known=None,", "known=self.known,", "nothing reads it after the selection"),
        ("mini-batches: the first ones are the larger", "-(-index * prompts // mini_b", "(index * prompts // mini_b"),
    ),
    *in_file(
        f"{ALGORITHMS}/losses.py",
        ("value loss: the larger of both", "0.5 * torch.maximum(unclipped", "0.5 * torch.minimum(unclipped"),
        ("value loss: clipped where that is larger", "(clipped > unclipped)", "(clipped < unclipped)"),
        ("dual clip: a bound from above", "torch.minimum(loss, -inputs", "torch.maximum(loss, -inputs"),
        ("gspo: the mean over tokens", "jagged.sums(delta.detach(), inputs.lengths) / inputs.lengths",
         "jagged.sums(delta.detach(), inputs.lengths)"),
        ("cispo: the clipped ratio is the weight", "PolicyLoss(-weight *", "PolicyLoss(-ratio *"),
        ("seq-mean-token-mean: divided by the length", "return sequence_weight / lengths", "return sequence_weight"),
    ),
    *in_file(
        f"{ALGORITHMS}/kl.py",
        ("k3: e^d − d − 1", "torch.expm1(difference) - difference", "torch.expm1(difference) + difference"),
        ("adaptive KL: at most a fifth", "min(1.0, count / horizon)", "(count / horizon)"),
    ),
    *in_file(
        f"{ALGORITHMS}/rollout_correction.py",
        ("rejection: outside of either bound", "(ratio < low) | (ratio > high)", "(ratio < low) & (ratio > high)"),
    ),
    *in_file(
        f"{TRAINING}/objective.py",
        ("entropy bonus: subtracted from the loss", "loss - entropy_coefficient", "loss + entropy_coefficient"),
        ("KL in the loss: added", "loss + kl_coefficient", "loss - kl_coefficient"),
        ("importance weights: multiply the surrogate", "else is_weights * surrogate.loss", "else surrogate.loss"),
    ),
    *in_file(
        f"{TRAINING}/policy.py",
        ("ratio/p95: the 95% quantile", "round(0.95 * len(ratios)) - 1", "round(0.95 * len(ratios)) - 2"),
    ),
    *in_file(
        f"{TRAINING}/learner.py",
        ("padding weighs nothing", "torch.zeros_like(weight) if batch.is_padding else weight", "weight"),
    ),
    *in_file(
        f"{TRAINING}/critic.py",
        ("explained variance: of the difference", "(returns - values).var(", "(returns + values).var("),
    ),
    *in_file(
        f"{TRAINING}/seqlen_balancing.py",
        ("balance: the longest first", "reverse=True", "reverse=False"),
    ),
    *in_file(
        f"{TRAINING}/optimizer.py",
        ("vectors do not decay", '"params": vectors, "weight_decay": 0.0', '"params": vectors, "weight_decay": 0.1'),
        ("the limit of skipped updates", "count >= self._settings", "count > self._settings"),
    ),
    *in_file(
        f"{TRAINING}/micro_batches.py",
        ("the prompt's last token predicts the first", "end = row.boundaries[-1] - 1", "end = row.boundaries[-1]"),
    ),
    *in_file(
        f"{REWARDS}/score.py",
        ("parts: a negative rest counts", "rest.abs().max()", "rest.max()"),
        ("max_failure_rate is allowed itself", "failed > max_failure_rate", "failed >= max_failure_rate"),
    ),
    *in_file(
        f"{REWARDS}/audit.py",
        ("audit: a fractional verdict is not wrong", "else score.value > 0", "else score.value >= 1"),
        ("audit: as few false as cause an alarm", ">= FEWEST_FALSE", "> FEWEST_FALSE"),
    ),
    *in_file(
        f"{REWARDS}/signs.py",
        ("drift: downwards, too", "return abs(value - middle)", "return (value - middle)"),
    ),
    *in_file(
        f"{SCORING}/learning_signal.py",
        ("all_wrong: nearly all", "if rate <= 1 - NEARLY_ALL", "if rate <= 0.5"),
    ),
    *in_file(
        f"{SCORING}/outputs.py",
        ("another ground truth is another problem", "keys ^= hash_values(joined.truths) >> np.uint64(1)",
         "keys ^= np.uint64(0)"),
    ),
    *in_file(
        f"{SCORING}/outputs.py",
        ("finished unknown is not cut off", "(flags != 0).tolist()", "(flags == 1).tolist()"),
    ),
    *in_file(
        f"{SCORING}/pool.py",
        ("an answer that may be innocent is not blamed", "if loss.is_certain or is_single else None", "",
         "a race between a worker's end and its answer"),
    ),
    *in_file(
        f"{SCORING}/statistics.py",
        ("Wilson's interval", "z * z / (4 * size * size)", "z * z / (2 * size * size)"),
        ("pass@k: without replacement", "np.maximum(size - correct - drawn, 0)", "np.maximum(size - correct, 0)"),
        ("standard error: unbiased", "np.std(correct / size, ddof=1)", "np.std(correct / size, ddof=0)"),
    ),
    *in_file(
        f"{TASKS}/splits.py",
        ("patience: repeats after the last new problem", "position - self._newest - 1", "position - self._newest"),
    ),
    *in_file(
        f"{TASKS}/async_scorer.py",
        ("retry-after: not sooner than asked", "return max(_backoff(state)", "return min(_backoff(state)"),
    ),
    *in_file(
        f"{TASKS}/score_guard.py",
        ("a long completion keeps its end", "_END = slice(-MOST_", "_END = slice(MOST_"),
        ("a number is correct at the top of its range", "if value == self._range[1]", "if value > self._range[0]"),
        ("parts are weighted", "value += part.weight * parts[name]", "value += parts[name]"),
    ),
    *in_file(
        f"{TASKS}/reward_parts.py",
        ("the range of a negative weight", "sorted(part.weight * bound for bound in part.range)",
         "[part.weight * bound for bound in part.range]"),
    ),
]  # fmt: skip


def copy_to(directory: Path, checkout: Path) -> None:
    """Copy the files that git tracks."""
    listed = subprocess.run(["git", "-C", str(checkout), "ls-files", "-z"], check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(checkout / name, directory / name)


def failures(copy: Path, options: list[str]) -> list[str]:
    """The tests and files that fail in the copy, by their names for pytest.

    They run in a fork of this process, which has imported the large packages and nothing of ours.
    """
    log = copy / "pytest.log"
    if not (child := os.fork()):
        try:
            os.setpgid(0, 0)
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            os.dup2(1, 2)
            os.chdir(copy)
            plugins = [f"plugins/{name}" for name in ("countdown", "multiply", "gsm8k", "reasoning_gym")]
            sys.path[:0] = paths = [str(copy / place) for place in (".", "trainer", *plugins)]
            os.environ["PYTHONPATH"], sys.dont_write_bytecode = os.pathsep.join(paths), True
            os.environ["HYPOTHESIS_PROFILE"] = "mutants"
            imported = "ignore::pytest.PytestAssertRewriteWarning"  # some of pytest's plugins are, already
            code = int(pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", "-W", imported, *options]))
            sys.stdout.flush()
            os._exit(code)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(99)
    deadline = time.monotonic() + MOST_SECONDS
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return ["a hang"]
        time.sleep(0.05)
    code = os.waitstatus_to_exitcode(ended[1])
    if code in (0, 5):  # 5: there are no tests
        return []
    lines = log.read_text("utf-8", "replace").splitlines()
    names = [line.split(" ", 1)[1].split(" - ")[0] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return names or [f"exit code {code}"]


def tests_of(file: str) -> list[tuple[str, ...]]:
    """Its doctests and the tests of its name, those of its area, and those of its half."""
    area = next(area for area in TESTS if file.startswith(f"{area}/"))
    half = ("tests/trainer",) if area.startswith("trainer/") else ("tests/sdk", "tests/adapters", "tests/plugins")
    return [(file, f"{TESTS[area][0]}/test_{Path(file).name}"), TESTS[area], half]


def broken_tests(copy: Path, files: Iterable[str], *, stages: int) -> list[str]:
    """Options of pytest that leave out what fails without a fault."""
    places = {place for file in files for tests in tests_of(file)[:stages] for place in tests}
    present = sorted(place for place in places if (copy / place).exists())
    without: list[str] = []
    while broken := failures(copy, [*present, *without]):  # again, as no test runs where a file cannot be imported
        if any(name.startswith("exit code") for name in broken):
            sys.exit((copy / "pytest.log").read_text("utf-8", "replace"))  # with no test, each would count as killed
        print("left out, as they fail without a fault:", *broken, sep="\n  ", flush=True)
        without += [f"--deselect={name}" if "::" in name else f"--ignore={name}" for name in broken]
    return without


def killer(copy: Path, file: str, text: str, *, stages: int, without: list[str]) -> str:
    """The first test that fails where a file has this text; empty if none does."""
    right = (copy / file).read_text("utf-8")
    (copy / file).write_text(text, "utf-8")
    try:
        for tests in tests_of(file)[:stages]:
            present = [place for place in tests if (copy / place).exists()]
            if present and (killers := failures(copy, [*present, "-x", *without])):
                return killers[0]
        return ""
    finally:
        (copy / file).write_text(right, "utf-8")


def verdict(mutant: Mutant, copy: Path, *, stages: int, without: list[str]) -> str:
    """`killed by …`, `SURVIVED`, or that the line is not there."""
    file = copy / mutant.file
    text = file.read_text("utf-8") if file.exists() else ""
    if text.count(mutant.old) != 1:
        return f"NOT FOUND: {mutant.old!r} is {text.count(mutant.old)} times in {mutant.file}"
    if name := killer(copy, mutant.file, text.replace(mutant.old, mutant.new), stages=stages, without=without):
        return f"killed by {name}"
    line = text[: text.index(mutant.old)].count("\n") + 1
    return f"SURVIVED: {mutant.file}:{line}: {mutant.old} -> {mutant.new}"


def main(
    checkout: Annotated[Path, typer.Argument()] = Path(),
    only: Annotated[list[str] | None, typer.Option(help="faults whose law or file has this in it")] = None,
    whole: Annotated[bool, typer.Option("--whole", help="survivors meet all fast tests of their half")] = False,
) -> None:
    """Plant each fault, run the fast tests, and print which faults survive."""
    words, stages, bad = only or [""], 3 if whole else 2, 0
    chosen = [mutant for mutant in MUTANTS if any(word in f"{mutant.law} {mutant.file}" for word in words)]
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        copy = Path(directory)
        copy_to(copy, checkout.resolve())
        without = broken_tests(copy, [mutant.file for mutant in chosen], stages=stages)
        for mutant in chosen:
            result = verdict(mutant, copy, stages=stages, without=without)
            print(f"{mutant.law}: {result}{f' (excused: {mutant.excuse})' if mutant.excuse else ''}", flush=True)
            bad += not result.startswith("killed") and not mutant.excuse
    print(f"\n{len(chosen) - bad} of {len(chosen)} killed or excused")
    raise typer.Exit(bool(bad))


if __name__ == "__main__":
    typer.run(main)
