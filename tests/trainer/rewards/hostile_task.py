"""A task whose scorer does on every second completion what its problem says, and all that a scorer should not."""

import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from tinyzero_sdk import Item, TaskInfo, hookimpl

HOARD = []


class Unpicklable(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.function = lambda: second


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError("str")

    __repr__ = __str__


class Ending(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


def fail(error: BaseException) -> NoReturn:
    raise error


def leak() -> NoReturn:
    while True:
        HOARD.append(bytearray(64 << 20))


def print_a_gigabyte(descriptor: int) -> None:
    for _ in range(1024):
        os.write(descriptor, (b"x" * 1023 + b"\n") * 1024)


def leave_a_process(**options: Any) -> float:
    subprocess.Popen(["sleep", "1000"], **options)
    return 0.25


def recurse() -> Any:
    return recurse()


FAULTS: dict[str, Callable[[], Any]] = {
    "raises": lambda: fail(ZeroDivisionError("division")),
    "unpicklable": lambda: fail(Unpicklable("1", "2")),
    "wordless": lambda: fail(Wordless()),
    "ending": lambda: fail(Ending()),
    "interrupt": lambda: fail(KeyboardInterrupt()),
    "long message": lambda: fail(ValueError("y" * 10_000_000)),
    "recursion": recurse,
    "sys.exit": lambda: sys.exit(0),
    "os._exit": lambda: os._exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "leak": leak,
    "sleep": lambda: time.sleep(1000),
    "C loop": lambda: 9**9**9,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "numpy nan": lambda: np.float32("nan"),
    "huge": lambda: 10**400,
    "text": lambda: "1",
    "none": lambda: None,
    "list": lambda: [1.0, 0.0],
    "prints": lambda: print_a_gigabyte(1) or 0.25,
    "complains": lambda: print_a_gigabyte(2) or 0.25,
    "child": leave_a_process,
    "daemon": lambda: leave_a_process(start_new_session=True),
    "numpy": lambda: np.float64(0.25),
}
LATE = ("sleep", "C loop")
RIGHT = ("prints", "complains", "child", "daemon", "numpy")


def fault_of(number: int, answer: str) -> str | None:
    return [*FAULTS][number % len(FAULTS)] if zlib.crc32(answer.encode()) % 2 else None


@hookimpl
def info() -> TaskInfo:
    return TaskInfo("Hostile.")


@hookimpl
def generate_dataset(split: str, size: int, seed: int, start: int) -> Iterator[Item]:
    return (Item({"number": number}) for number in range(start, start + size))


@hookimpl
def make_prompt(item: Item, template: str) -> str:
    return str(item.ground_truth["number"])


@hookimpl
def extract_answer(completion: str) -> str:
    return completion


@hookimpl
def is_valid(ground_truth: Any) -> bool:
    return True


@hookimpl
def difficulty(item: Item) -> float:
    return 0


@hookimpl
def score(answer: str, ground_truth: dict[str, int]) -> Any:
    fault = fault_of(ground_truth["number"], answer)
    return FAULTS[fault]() if fault else 0.0
