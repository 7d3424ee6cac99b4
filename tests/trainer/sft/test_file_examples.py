"""Files of examples: what is learned of each format, what is held out, and what is refused, by file and row."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.trainer.configurations import call
from tinyzero_sdk import Score, Task
from tinyzero_sdk.data.rows import item_to_row
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.config.run import LogConfig
from tinyzero_trainer.config.sft import compose_sft
from tinyzero_trainer.config.tasks import load_tasks
from tinyzero_trainer.models.new_model import build_tokenizer
from tinyzero_trainer.monitoring.completion_log import CompletionLog
from tinyzero_trainer.sft.examples import Encoder
from tinyzero_trainer.sft.file_examples import ExampleFile, FileExamples
from tinyzero_trainer.types import Generation, Prompt, Rollout

TOKENIZER = build_tokenizer()
TOKENIZER.chat_template = (
    "{% for turn in messages %}{{ turn.role }}: {{ turn.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
ENCODER = Encoder(TOKENIZER, {TOKENIZER.eos_token_id})
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2"}]
Rows = Sequence[dict[str, Any]]
Read = Callable[..., FileExamples]


def write(path: Path, rows: Rows) -> str:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """The examples of rows, of a run with these tasks."""

    def open_examples(rows: Rows, name: str = "rows.jsonl", tasks: dict | None = None, **data: Any) -> FileExamples:
        path = write(tmp_path / name, rows)
        config = compose_sft({"tasks": tasks or {}, "data": {"path": path, "test_fraction": 1e-9, **data}})
        loaded = load_tasks(config.task_specs)
        return FileExamples(config, ExampleFile(path, config, loaded), loaded, ENCODER)

    return open_examples


def texts(examples: FileExamples) -> list[tuple[str, str]]:
    """Prompt and completion of each example, without the order of an epoch."""
    found = examples.examples(range(len(examples._file.places)))
    assert all(example.generation.token_ids[-1] == TOKENIZER.eos_token_id for example in found)
    return sorted((example.prompt.text, example.text) for example in found)


def problems(task: Task, split: Any, count: int, fraction: float) -> list[Any]:
    return list(task.dataset(split, count, test_fraction=fraction))


def scored(task: Task, item: Any, completion: str, **columns: Any) -> dict[str, Any]:
    row = {"data_source": task.name, "prompt": "?", "reward_model": {"ground_truth": item.ground_truth}, **item.data}
    return {**row, "completion": completion, "correct": True, "finished": True, **columns}


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_reasoning_that_is_given_apart_is_learned_before_the_answer(read: Read, name: str) -> None:
    said = {"role": "assistant", "content": "4", "reasoning_content": "2 and 2"}
    learned = "<think>\n2 and 2\n</think>\n\n4"
    examples = read([{"messages": [*CHAT, said, CHAT[1], {"role": "assistant", "content": "5"}]}], name)
    assert [text for _, text in texts(examples)] == [learned, "5"]
    row = {"prompt": CHAT, "completion": "4", "correct": True, "reasoning_content": "2 and 2", "ground_truth": "4"}
    assert [text for _, text in texts(read([row], name))] == [learned]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_prompts_with_completions_are_text_or_messages(read: Read, name: str) -> None:
    as_text = [{"prompt": "1+1=", "completion": "2"}, {"prompt": "1+2=", "completion": "3"}]
    assert texts(read(as_text, name)) == [("1+1=", "2"), ("1+2=", "3")]
    as_messages = [{"prompt": CHAT, "completion": [{"role": "assistant", "content": "4"}]}]
    ((prompt, completion),) = texts(read(as_messages, name))
    assert (prompt.index("Be brief.") < prompt.index("2+2"), completion) == (True, "4")


def test_a_completion_of_several_messages_is_learned_turn_by_turn(read: Read) -> None:
    turns = [("user", "2+2"), ("assistant", "4"), ("user", "+1"), ("assistant", "5"), ("user", "thanks")]
    messages = [{"role": role, "content": content} for role, content in turns]
    first, second = texts(read([{"prompt": messages[:1], "completion": messages[1:]}]))
    assert (first, second[1]) == (("user: 2+2\nassistant: ", "4"), "5")
    assert second[0] == "user: 2+2\nassistant: 4\nuser: +1\nassistant: "
    assert texts(read([{"prompt": "2+2=", "completion": messages[1:2]}])) == [("2+2=", "4")]


def test_a_turn_without_text_or_of_weight_zero_is_not_learned(read: Read) -> None:
    turns = [("no", {"weight": 0}), ("", {}), ("yes", {"weight": 1})]
    answers = [{"role": "assistant", "content": text, **weight} for text, weight in turns]
    ((prompt, completion),) = texts(read([{"messages": [turn for answer in answers for turn in (CHAT[1], answer)]}]))
    assert ("no" in prompt, completion) == (True, "yes")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_the_task_completes_the_problems_of_a_data_file(read: Read, toy_task: str, name: str) -> None:
    tasks = {"toy": {"task": toy_task}}
    task = load_tasks(compose_sft({"tasks": tasks}).task_specs)["toy"]
    items = problems(task, "train", 3, 1e-9)
    rows = [item_to_row(task, item, index=index, split="train") for index, item in enumerate(items)]
    made = [task.demonstrate(item, derive_seed("demonstration", 0, index)) for index, item in enumerate(items)]
    expected = sorted((task.make_prompt(item, "base"), text) for item, text in zip(items, made, strict=True))
    assert texts(read(rows, name, tasks=tasks, prompt_template="base")) == expected
    owned = [{**row, "data_source": "someone/toy"} for row in [*rows, rows[0]]]  # an example of each problem
    assert texts(read(owned, name, tasks=tasks, prompt_template="base")) == expected
    rows = [item_to_row(task, item, index=0, split="test") for item in problems(task, "test", 1, 0.3)]
    with pytest.raises(DataError, match="1 is of a held-out problem"):
        read(rows, name, tasks=tasks, test_fraction=0.3)


def test_problems_as_their_authors_publish_them_are_completed(read: Read) -> None:
    tasks = {"gsm8k": {"task": "gsm8k", "options": {"source": "synthetic"}}}
    rows = [{"question": "How many?", "answer": "1 + 1 = <<1+1=2>>2\n#### 2"}]
    by_verl = {"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "How many? Let's think."}]}
    by_verl |= {"reward_model": {"style": "rule", "ground_truth": "2"}, "extra_info": {"split": "train", **rows[0]}}
    for row in (*rows, by_verl):
        ((prompt, completion),) = texts(read([row], tasks=tasks))
        assert ("How many?" in prompt, completion.endswith("<answer>2</answer>")) == (True, True)
    with pytest.raises(DataError, match=r"rows\.jsonl:1: .*solve.*'answer'"):
        read([{"prompt": "How many?", "ground_truth": "2"}], tasks=tasks)


@pytest.mark.slow
def test_the_rows_on_the_page_are_read(read: Read) -> None:
    page = (Path(__file__).parents[3] / "docs" / "training" / "fine-tuning.md").read_text()
    rows = [json.loads(row) for row in re.findall(r"```json\n(.*)\n```", page)]
    found = [texts(read([row], tasks={"multiply": {}}, test_fraction=1 / 16)) for row in rows]
    assert [completion for ((_, completion),) in found[:3]] == ["… <answer>42</answer>", "42", " 42"]
    ((prompt, completion),) = found[3]
    assert (len(found), "6" in prompt, "<answer>42</answer>" in completion) == (4, True, True)


def test_a_few_right_and_whole_completions_of_each_problem_are_learned(read: Read, toy_task: str) -> None:
    tasks = {"toy": {"task": toy_task}}
    task = load_tasks(compose_sft({"tasks": tasks}).task_specs)["toy"]
    one, two = problems(task, "train", 2, 1e-9)
    rows = [
        *(scored(task, one, text) for text in "aabcd"),
        scored(task, two, "wrong", correct=False),
        scored(task, two, "cut off", finished=False),
        scored(task, two, "right"),
    ]
    found = texts(read(rows, tasks=tasks, max_per_problem=3, prompt_template="base"))
    prompts = [task.make_prompt(item, "base") for item in (one, two)]
    assert found == sorted([(prompts[0], "a"), (prompts[0], "b"), (prompts[0], "c"), (prompts[1], "right")])


@pytest.mark.slow
def test_held_out_problems_are_refused_whatever_the_format(read: Read, toy_task: str) -> None:
    tasks = {"toy": {"task": toy_task, "options": {"limit": 9}}}
    task = load_tasks(compose_sft({"tasks": tasks}).task_specs)["toy"]
    trained, held_out = problems(task, "train", 1, 0.3)[0], problems(task, "test", 1, 0.3)[0]
    for prompt in ("base", "chat"):
        made = task.make_prompt(held_out, prompt)
        rows = [{"prompt": "fine", "completion": "yes"}, {"prompt": made, "completion": "no"}]
        with pytest.raises(DataError, match=r"rows\.jsonl:2 is of a held-out problem, and accuracy is measured"):
            read(rows, tasks=tasks, test_fraction=0.3)
    rows = [scored(task, trained, "yes"), scored(task, held_out, "wrong", correct=False), scored(task, held_out, "no")]
    with pytest.raises(DataError, match=r"rows\.parquet:3 is of a held-out problem"):
        read(rows, "rows.parquet", tasks=tasks, test_fraction=0.3)
    assert len(texts(read(rows[:2], tasks=tasks, test_fraction=0.3))) == 1
    for row in (
        {"prompt": "asked otherwise", "completion": "no"},
        {"messages": [{"role": "user", "content": "asked otherwise"}, {"role": "assistant", "content": "no"}]},
    ):
        assert len(texts(read([row], tasks=tasks, test_fraction=0.3))) == 1
        for of_problem in (
            {"extra_info": {"split": "test", "key": "known"}},
            {"ground_truth": held_out.ground_truth, **held_out.data},
            {"data_source": task.name, "reward_model": {"ground_truth": held_out.ground_truth}, **held_out.data},
        ):
            with pytest.raises(DataError, match=r"rows\.jsonl:1 is of a held-out problem"):
                read([{**row, **of_problem}], tasks=tasks, test_fraction=0.3)
    with pytest.raises(DataError, match=r"rows\.jsonl:1 is of a held-out problem"):  # the task is none of the run's
        read([scored(task, trained, "yes", data_source="other", extra_info={"split": "test"})], tasks=tasks)


@pytest.mark.parametrize("wrapped", ["{}\n", "Think first.\n{}", "{}\nThink first."])
def test_a_question_of_the_test_split_is_refused_without_its_columns_or_template(
    read: Read, tmp_path: Path, wrapped: str
) -> None:
    rows = {
        split: [{"question": f"How many {split} apples are {n} and 1?", "answer": f"#### {n + 1}"} for n in range(9)]
        for split in ("train", "test")
    }
    (tmp_path / "gsm8k").mkdir()
    for split, of_split in rows.items():
        write(tmp_path / "gsm8k" / f"{split}.jsonl", of_split)
    tasks = {"gsm8k": {"task": "gsm8k", "options": {"path": str(tmp_path / "gsm8k")}}}
    for split, of_split in rows.items():
        asked = [wrapped.format(row["question"]) for row in of_split]
        pair = {"prompt": asked[8], "completion": "9"}
        chat = {"messages": [{"role": "user", "content": asked[8]}, {"role": "assistant", "content": "9"}]}
        whole = {"prompt": "How many?", "completion": "9", "extra_info": of_split[8]}
        for row in (pair, chat, whole):
            if split == "train":
                assert len(texts(read([row], tasks=tasks))) == 1
            else:
                with pytest.raises(DataError, match=r"rows\.jsonl:1 is of a held-out problem"):
                    read([row], tasks=tasks)


def test_the_task_makes_the_prompt_of_a_scored_row_without_one(read: Read, toy_task: str) -> None:
    tasks = {"toy": {"task": toy_task}}
    task = load_tasks(compose_sft({"tasks": tasks}).task_specs)["toy"]
    item = problems(task, "train", 1, 1e-9)[0]
    rows = [{"ground_truth": item.ground_truth, **item.data, "completion": "yes", "correct": True}]
    assert texts(read(rows, tasks=tasks, prompt_template="base")) == [(task.make_prompt(item, "base"), "yes")]
    with pytest.raises(DataError, match=r"rows\.jsonl:1: no prompt; expected it in the column `prompt`, or give the"):
        read(rows)


def test_right_completions_that_a_run_kept_are_learned(tmp_path: Path) -> None:
    """Of a task that makes its prompts of the problem's own columns."""
    tasks = {"gsm8k": {"options": {"source": "synthetic"}}}
    config = compose_sft({"tasks": tasks, "data": {"path": str(tmp_path), "prompt_template": "base"}})
    loaded = load_tasks(config.task_specs)
    items = problems(loaded["gsm8k"], "train", 2, 1 / 16)
    log = CompletionLog(tmp_path / "completions", LogConfig(rollouts_count=9), loaded, TOKENIZER, pytest.fail)
    prompts = [Prompt(item, "as the model saw it", [1], "gsm8k") for item in items]
    scores = [Score(1.0, True), Score(0.0, False, "wrong")]
    generation = Generation([1, 2], None, True)
    log.train(1, [Rollout(prompt, generation, "so <answer>", score) for prompt in prompts for score in scores])
    log.write()
    examples = FileExamples(config, ExampleFile(str(tmp_path), config, loaded), loaded, ENCODER)
    assert texts(examples) == sorted((loaded["gsm8k"].make_prompt(item, "base"), "so <answer>") for item in items)
    alone = compose_sft({"data": {"path": str(tmp_path)}})
    with pytest.raises(DataError, match=r":1: a run keeps its prompts as the model read them; give the --task that ma"):
        ExampleFile(str(tmp_path), alone, {})
    (file,) = (tmp_path / "completions").iterdir()
    pq.write_table(pq.read_table(file).drop_columns("data"), file)
    with pytest.raises(DataError, match=r":1: task 'gsm8k': .* a problem needs the columns that the task gives it"):
        ExampleFile(str(tmp_path), config, loaded)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"completion": "a", "prompt": "b", "correct": "false", "ground_truth": 1},
            "rows.jsonl:2: correct is 'false', expected true or false",
        ),
        (
            {"messages": [{"role": "human", "content": "a"}, {"role": "assistant", "content": "b"}]},
            "rows.jsonl:2: a message has the role 'human', expected one of system, developer, user, assistant, tool",
        ),
        ({"text": "a"}, "rows.jsonl:2 has the columns text; expected a scored completion (completion, correct), mes"),
        ({"instruction": "a", "input": "", "output": "b"}, "(with its input) to prompt, output to completion"),
        ({"conversations": [{"from": "human", "value": "a"}]}, "conversations to messages, from to role, value to con"),
        ({"messages": CHAT}, "rows.jsonl:2: no message of the assistant with text follows another"),
        (
            {"prompt": "a", "completion": [{"role": "assistant", "content": "b"}, *CHAT]},
            "rows.jsonl:2: the completion has several messages, and the prompt is text; expected messages",
        ),
        (
            {"messages": [*CHAT, {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}]},
            "rows.jsonl:2: a message calls a tool, which is learned as text only; write the call into its content",
        ),
        (
            {"messages": [*CHAT, {"role": "assistant", "content": "b"}], "tools": [{"name": "f"}]},
            "rows.jsonl:2: it offers tools, of which no chat template is told here; remove the row",
        ),
        ({"prompt": "a", "completion": ""}, "rows.jsonl:2: the completion is empty"),
        ({"prompt": [], "completion": "a"}, "rows.jsonl:2: got [], expected text, or messages with role and content"),
        ({"prompt": "a", "completion": "b", "correct": True}, "rows.jsonl:2: no ground truth; expected it in the"),
    ],
)
def test_a_row_that_is_no_example_is_named(read: Read, row: dict, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read([{"prompt": "a", "completion": "b"}, row])
    assert message in str(caught.value)


def test_a_file_without_a_right_completion_is_refused(read: Read) -> None:
    wrong = {"prompt": "a", "completion": "b", "correct": False, "ground_truth": 1}
    with pytest.raises(DataError, match=r"rows\.jsonl has 1 completion, and none is right and whole; sample more"):
        read([wrong])


def test_an_epoch_has_each_example_once_in_an_order_of_its_own(read: Read) -> None:
    examples = read([{"prompt": f"{number}=", "completion": str(number)} for number in range(50)])
    epochs = [[one.text for one in examples.examples(range(first, first + 50))] for first in (0, 50)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(map(str, range(50)))
    assert epochs[0] != epochs[1]


def test_the_held_out_loss_is_of_other_problems_or_another_file(read: Read, tmp_path: Path) -> None:
    rows = [{"prompt": f"{number}=", "completion": str(number)} for number in range(200)]
    examples = read(rows, test_fraction=0.25)
    held_out = {example.text for example in examples.held_out(1000)}
    assert 30 < len(held_out) < 70
    assert held_out | {completion for _, completion in texts(examples)} == set(map(str, range(200)))
    assert len(texts(examples)) == 200 - len(held_out)
    examples = read(rows[3:], test_path=write(tmp_path / "test.jsonl", rows[:3]))
    assert [example.text for example in examples.held_out(2)] == ["0", "1"]
    assert len(texts(examples)) == 197
    with pytest.raises(DataError, match=r"1 problem to learn from and held out as well, such as .*:2 and .*:3; remove"):
        read([rows[0], *rows[2:]], test_path=write(tmp_path / "test.jsonl", [rows[1], rows[1], rows[2]]))


def test_a_folders_test_split_is_the_held_out_file(read: Read, tmp_path: Path) -> None:
    folder = tmp_path / "divided"
    folder.mkdir()
    for split in ("train", "test"):
        write(folder / f"{split}.jsonl", [{"prompt": f"{split}=", "completion": split}])
    examples = read([{"prompt": "1+1=", "completion": "2"}], test_path=str(folder))
    assert [example.text for example in examples.held_out(9)] == ["test"]
    (folder / "test.jsonl").unlink()
    with pytest.raises(DataError, match="has no test split; it has train"):
        read([{"prompt": "1+1=", "completion": "2"}], test_path=str(folder))


def test_a_conversation_is_held_out_whole(read: Read) -> None:
    rows = []
    for number in range(40):
        said = (f"about {number}?", f"{number}", "go on", f"{number}!")
        turns = zip(("user", "assistant") * 2, said, strict=True)
        rows.append({"messages": [{"role": role, "content": content} for role, content in turns]})
    examples = read(rows, test_fraction=0.3)
    held_out = {example.text.rstrip("!") for example in examples.held_out(1000)}
    learned = {completion.rstrip("!") for _, completion in texts(examples)}
    assert (held_out & learned, held_out | learned) == (set(), set(map(str, range(40))))
    assert len(held_out) > 3
    asked = {"messages": [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]}
    path = write(Path(examples.what).with_name("test.jsonl"), [asked])
    with pytest.raises(DataError, match="1 problem to learn from and held out as well"):
        read([{"prompt": "1+1=", "completion": "2"}], test_path=path)


def test_a_row_that_the_chat_template_refuses_is_named(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    monkeypatch.setattr(TOKENIZER, "chat_template", refusal + TOKENIZER.chat_template)
    answer = {"role": "assistant", "content": "4"}
    fine, refused = {"messages": [CHAT[1], answer]}, {"messages": [*CHAT, answer]}
    with pytest.raises(DataError, match=r"rows\.jsonl:3: the model's chat template fails \(.*no system\)"):
        texts(read([fine, fine, refused]))


def test_a_completion_is_tokenized_as_it_stands_after_its_prompt() -> None:
    """Also by a tokenizer that adds a space where a text begins."""
    pieces = Tokenizer(models.BPE({"<unk>": 0, "</s>": 1, "▁": 2, "=": 3, "4": 4, "2": 5, "▁4": 6}, [("▁", "4")]))
    pieces.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    pieces.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="</s>", unk_token="<unk>")
    encoder = Encoder(tokenizer, {1})
    for completion, expected in (("42", [4, 5, 1]), (" 42", [6, 5, 1])):
        prompt = encoder.prompt("4=", None, "")
        (example,) = encoder.examples([prompt], [completion], [False])
        assert example.generation.token_ids == expected
    (example,) = encoder.examples([prompt], ["42"], [True])  # a chat template may write a space itself
    assert example.generation.token_ids == [6, 5, 1]


@pytest.mark.slow
def test_what_eval_writes_is_fine_tuned_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The tiny model's own right answers."""
    few = ("rollout.max_completion_tokens=64", "run.device=cpu")
    words = ("--task", "countdown", "--split", "train", "--size", "32", "--output", str(tmp_path / "train.jsonl"))
    code, _, error = call(capsys, "eval", *words, *few)
    assert code == 0, error
    model = ("--model", str(Path(__file__).parents[3] / "trainer" / "tinyzero_trainer" / "tiny_model"))
    sizes = ("run.steps=2", "log.rollouts_every=1", "data.batch_size=4", "eval.num_problems=4")
    sizes += ("data.test_fraction=0.125",)
    words = ("--task", "countdown", "--data", str(tmp_path / "train.jsonl"), "data.prompt_template=compact")
    options = ("task.numbers=[3]", "task.number_range=[1,20]", "task.target_range=[1,50]")
    code, out, error = call(capsys, "sft", *words, *model, *sizes, *few, *options, "--output", str(tmp_path / "run"))
    assert code == 0, error
    assert "held-out accuracy: " in out


def test_a_chat_of_several_messages_needs_a_chat_template(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"role": "assistant", "content": "4"}
    one, several = {"messages": [CHAT[1], answer]}, {"messages": [*CHAT, answer]}
    assert len(texts(read([one, several]))) == 2
    monkeypatch.setattr(TOKENIZER, "chat_template", None)
    assert texts(read([one])) == [("2+2", "4")]
    with pytest.raises(DataError, match=r"rows\.jsonl:2: .* the model has no chat template; .*give a --model with one"):
        texts(read([one, several]))
