"""An entry of reasoning-gym as plain JSON and back, without loss: its metadata hold tuples, fractions and keys
that are numbers, none of which JSON or Parquet has.

Question and answer stay texts; the metadata become one text of JSON, in which a value that JSON has not is
`{"!": its type, "v": what it is made of}`.
"""

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from tinyzero_sdk.errors import DataError

_TAG = "!"


def to_ground_truth(entry: Mapping[str, Any]) -> dict[str, str | None]:
    """What a scorer needs of an entry, as three texts (`answer` may be None).

    Raises:
        DataError: the entry holds what cannot be written down, or has not the form of one.
    """
    question, answer = entry["question"], entry.get("answer")
    if not isinstance(question, str) or not isinstance(answer, str | None):
        raise DataError(f"an entry has the question {question!r} and the answer {answer!r}; expected two texts")
    return {
        "question": str(question),
        "answer": None if answer is None else str(answer),
        "metadata": json.dumps(encode(entry.get("metadata", {}))),
    }


def to_entry(ground_truth: Mapping[str, str | None]) -> dict[str, Any]:
    """The entry again, as reasoning-gym made it."""
    metadata = decode(json.loads(ground_truth["metadata"] or "{}"))
    return {"question": ground_truth["question"], "answer": ground_truth["answer"], "metadata": metadata}


def known_answers(entry: Mapping[str, Any]) -> Iterator[str]:
    """The entry's answer, or where there is none, as several may be right, those that its metadata name."""
    if entry["answer"] is not None:
        yield entry["answer"]
    for key in ("example_answer", "example_correct_answer", "possible_answer"):
        if key in entry["metadata"]:
            example = entry["metadata"][key]
            yield example if isinstance(example, str) else json.dumps(example)


def encode(value: Any) -> Any:
    """`value` as plain JSON, from which `decode` makes it again.

    Raises:
        DataError: it holds a value of a type that is not known here.

    Example:
        >>> encode({1: (2, 3)})
        {'!': 'dict', 'v': [[1, {'!': 'tuple', 'v': [2, 3]}]]}
        >>> decode(encode({1: (2, 3)}))
        {1: (2, 3)}
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if type(value) is list:
        return [encode(entry) for entry in value]
    if type(value) is dict:
        if _TAG not in value and all(type(key) is str for key in value):
            return {key: encode(entry) for key, entry in value.items()}
        return {_TAG: "dict", "v": [[encode(key), encode(entry)] for key, entry in value.items()]}
    if type(value) is tuple:
        return {_TAG: "tuple", "v": [encode(entry) for entry in value]}
    if type(value) in (set, frozenset):
        # In an order of its own: that of a set differs from process to process.
        return {_TAG: type(value).__name__, "v": sorted(map(encode, value), key=json.dumps)}
    if type(value) is Fraction:
        return {_TAG: "fraction", "v": str(value)}
    if type(value).__module__ == "numpy" and type(plain := value.tolist()) is not type(value):
        return encode(plain)  # a number or a text of numpy's, which scorers treat as Python's
    raise DataError(f"an entry holds a value of type {type(value).__name__}, which this plugin cannot write down")


def decode(value: Any) -> Any:
    """What `encode` was given."""
    if isinstance(value, list):
        return [decode(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: decode(entry) for key, entry in value.items()}
    content = value["v"]
    match value[_TAG]:
        case "dict":
            return {decode(key): decode(entry) for key, entry in content}
        case "tuple":
            return tuple(decode(entry) for entry in content)
        case "set":
            return {decode(entry) for entry in content}
        case "frozenset":
            return frozenset(decode(entry) for entry in content)
        case "fraction":
            return Fraction(content)
    raise DataError(f"metadata hold a value of type {value[_TAG]!r}; was this file written by a newer version?")
