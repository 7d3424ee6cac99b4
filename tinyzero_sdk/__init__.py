"""TinyZero SDK: write a task with a verifiable reward, prove the reward, train a language model on it."""

from importlib.metadata import version as _version

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.hookspecs import hookimpl
from tinyzero_sdk.records import Completion, Item, RewardPart, Score, ScorerLimits, TaskInfo
from tinyzero_sdk.records_arrow import ItemColumns
from tinyzero_sdk.tasks.registry import list_tasks, load_task
from tinyzero_sdk.tasks.task import Task

__version__ = _version("tinyzero-sdk")
__all__ = [
    "Completion",
    "Item",
    "ItemColumns",
    "RewardPart",
    "Score",
    "ScorerLimits",
    "Task",
    "TaskInfo",
    "TinyZeroError",
    "__version__",
    "hookimpl",
    "list_tasks",
    "load_task",
]
