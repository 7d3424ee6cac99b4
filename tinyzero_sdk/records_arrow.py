"""Items as Arrow columns, for tasks that generate hundreds of thousands.

A task's `generate_dataset` may return `ItemColumns` instead of an iterable of `Item`: to a reader it is
a sequence of items, to the data writer columns that go into Parquet without a Python object for each item.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

from tinyzero_sdk.records import Item

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


class ItemColumns(Sequence[Item]):
    """A sequence of n items stored as two Arrow arrays of length n."""

    def __init__(self, ground_truth: "pa.Array", data: "pa.StructArray") -> None:
        """
        Args:
            ground_truth: [n], usually a struct; becomes `Item.ground_truth`.
            data: [n] struct whose fields are the task's own columns; becomes `Item.data`.

        Raises:
            ValueError: the two differ in length.
        """
        if len(ground_truth) != len(data):
            raise ValueError(f"ground_truth has {len(ground_truth)} rows, data has {len(data)}; expected the same")
        self.ground_truth = ground_truth
        self.data = data

    @classmethod
    def of(cls, items: Sequence[Item]) -> "ItemColumns | None":
        """The same items as columns, or None where columns would change them.

        Items of different structure have no columns; and 1 and 1.0 are equal, but not the same to every task.
        """
        import pyarrow as pa

        try:
            columns = cls(pa.array([item.ground_truth for item in items]), pa.array([item.data for item in items]))
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            return None
        return columns if repr(list(columns)) == repr(list(items)) else None

    def __len__(self) -> int:
        return len(self.ground_truth)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> "ItemColumns": ...
    def __getitem__(self, index: int | slice) -> "Item | ItemColumns":
        if isinstance(index, slice):
            return ItemColumns(self.ground_truth[index], self.data[index])
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")
        index %= len(self)
        return Item(self.ground_truth[index].as_py(), self.data[index].as_py())

    def __iter__(self) -> Iterator[Item]:
        # In blocks: converting a column at once is several times faster than a row at a time.
        for start in range(0, len(self), 4096):
            truths = self.ground_truth[start : start + 4096].to_pylist()
            for truth, data in zip(truths, self.data[start : start + 4096].to_pylist(), strict=True):
                yield Item(truth, data)

    def take(self, rows: "np.ndarray | Sequence[int]") -> "ItemColumns":
        """The items at `rows` ([k] integers), in that order."""
        import pyarrow as pa

        indices = pa.array(rows, pa.int64())
        return ItemColumns(self.ground_truth.take(indices), self.data.take(indices))
