"""The small tasks of the SDK's own tests."""

from tests.sdk.conftest import write_task as write_task
