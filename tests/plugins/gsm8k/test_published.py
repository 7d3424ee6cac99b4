"""The published problems themselves: TINYZERO_GSM8K names a folder with their `train.jsonl` and `test.jsonl`."""

import os

import pytest

from tinyzero_sdk import load_task
from tinyzero_sdk.data.file_task import load_file_tasks


@pytest.mark.slow
def test_the_published_files_give_their_own_splits_as_path_and_as_data_path():
    if not (folder := os.environ.get("TINYZERO_GSM8K")):
        pytest.skip("the published problems are not here: name their folder with TINYZERO_GSM8K")
    own, plain = load_task("gsm8k", options={"path": folder}), load_task("gsm8k")
    task = load_file_tasks({"gsm8k": plain}, folder)["gsm8k"]
    for split, size in (("train", 7473), ("test", 1319)):
        items = {task.item_key(item): item for item in task.dataset(split)}
        assert len(items) == size
        expected = {own.item_key(item): item for item in own.dataset(split, size)}
        assert {key: (item.ground_truth, item.data) for key, item in items.items()} == {
            key: (item.ground_truth, item.data) for key, item in expected.items()
        }
        for item in items.values():
            number = item.ground_truth
            forms = (
                f"<answer>{number}</answer>",
                rf"The answer is $\boxed{{{number}}}$.",
                f"#### {number}\n\n#### Check: 1",
            )
            for form in (
                plain.solve(item),
                item.data["answer"],
                *forms,
                f"<answer>**{float(number):,.2f}**</answer></s>\n",
            ):
                assert plain.score_completion(form, number).correct, form
                assert not plain.score_completion(form, f"{number}1").correct, form
