"""Rows in GSM8K's format, and the folders and caches that hold them, for the tests."""

import json

import datasets

TRAIN = [
    {
        "question": f"What is {n} plus 1,000?",
        "answer": f"It is {n} + 1000 = <<{n}+1000={n + 1000}>>{n + 1000}.\n#### 1,{n:03d}",
    }
    for n in range(60)
]
TEST = [
    {"question": f"What is {n} minus 1?", "answer": f"{n} - 1 = {n - 1}\nSo it is.\n#### {n - 1}"} for n in range(9, 29)
]
SHARED = {"question": "what is  9 MINUS 1?", "answer": "9 - 1 = 8\n#### 8"}


def as_dataset(rows):
    return datasets.Dataset.from_list(rows)


def write_jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    as_dataset(rows).to_parquet(path)
    return path


def write_repository(folder, train=TRAIN, test=TEST):
    """A copy of the Hub's repository: two configurations and a card."""
    for configuration in ("main", "socratic"):
        suffix = "" if configuration == "main" else " Ask yourself."
        for split, rows in (("train", train), ("test", test)):
            worded = [row | {"question": row["question"] + suffix} for row in rows]
            write_parquet(folder / configuration / f"{split}-00000-of-00001.parquet", worded)
    (folder / "README.md").write_text("# Dataset Card for GSM8K\n")
    return folder
