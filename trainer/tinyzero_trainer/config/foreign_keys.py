"""Keys of other trainers, by their names here (foreign_keys.toml): for messages and help."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import TABLE, describe, read_toml

TABLES = read_toml(Path(__file__).with_suffix(".toml"))
FOREIGN_KEYS: Mapping[str, str] = TABLES["keys"]
FOREIGN_WORDS: Mapping[str, str] = TABLES["words"]


def foreign_names(cls: type) -> Mapping[str, list[str]]:
    """The names in other trainers of each key of `cls` that has any."""
    known, names_of = {field.key for field in describe(cls)}, defaultdict[str, list[str]](list)
    for ours, names in FOREIGN_KEYS.items():
        if here := [key for key in ours.split() if key in known]:
            names_of[here[0]] += names.split()
    return names_of


def foreign_answer(cls: type, keys: Iterable[str]) -> str | None:
    """What answers the first name of another trainer among `keys`, in any table or none; its meaning may differ.

    Example:
        >>> from tinyzero_trainer.config import TrainConfig
        >>> foreign_answer(TrainConfig, ["run.steps", "trainer.resume_mode"])
        "unknown key 'trainer.resume_mode'; here it is the option --resume"
    """
    known = {field.key: field for field in describe(cls)}
    answers = {name: f"{key}: {known[key].help}" for key, names in foreign_names(cls).items() for name in names}
    answers |= {name: words for words, names in FOREIGN_WORDS.items() for name in names.split()}
    tables = tuple(f"{key}." for key, field in known.items() if field.type == TABLE)
    for key in keys:
        for name, answer in answers.items():
            if f".{key}".endswith(f".{name}") and key not in known and not key.startswith(tables):
                return f"unknown key {key!r}; here it is {answer}"
    return None


def find_keys(cls: type, words: Sequence[str]) -> list[str]:
    """The keys with all of the words in their name, type, text, or name in another trainer; or a SettingsError."""
    foreign, lowered = foreign_names(cls), [word.casefold() for word in words]
    texts = {field.key: f"{field.key} {field.type} {field.help}".casefold() for field in describe(cls)}
    texts = {key: " ".join([text, *foreign.get(key, ())]) for key, text in texts.items()}
    matching = [key for key, text in texts.items() if all(word in text for word in lowered)]
    if not matching:
        raise SettingsError(f"no key has {' and '.join(words)} in its name or text; --help alone lists all keys")
    return matching
