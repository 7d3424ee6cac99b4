"""Data sets by their name on the Hugging Face Hub: the files of a cached copy, else of a download by `datasets`.

A cached copy comes first: no request for each process and run.
"""

import contextlib
import re
from pathlib import Path

from tinyzero_sdk.data.folders import split_files
from tinyzero_sdk.errors import DataError

_NAME = re.compile(r"(?:hf://)?(?:datasets/)?([\w.-]+/[\w.-]+)(?:/([\w.-]+))?")
_PATIENCE = 5.0  # seconds


def parse_name(source: str) -> tuple[str, str | None] | None:
    """Repository and configuration of a name such as `openai/gsm8k/main` or `hf://datasets/openai/gsm8k`."""
    match = None if source.startswith((".", "/", "~")) else _NAME.fullmatch(source)
    return match and (match[1], match[2])


def hub_files(repository: str, configuration: str | None) -> dict[str, list[Path]]:
    """The files of each split of a data set: Parquet, JSON Lines, or Arrow.

    Raises:
        DataError: the Hub does not allow the name, there is neither a copy in a cache nor a network, or the data set
            has no such configuration.
    """
    try:
        import datasets
        import huggingface_hub
    except ModuleNotFoundError as error:
        raise DataError(
            f"there is no file or folder {repository}, and the Hugging Face Hub needs the package datasets: "
            "pip install 'tinyzero-sdk[hub]'"
        ) from error
    for folder in [*_hub_cache(repository, configuration), *_datasets_cache(repository, configuration)]:
        with contextlib.suppress(DataError):  # a snapshot holds what was fetched, which may be the README alone
            return split_files(folder)
    try:
        huggingface_hub.dataset_info(repository, timeout=_PATIENCE)  # where the other would try for half a minute
        data_set = datasets.load_dataset(repository, configuration)
        return {str(split): [Path(file["filename"]) for file in part.cache_files] for split, part in data_set.items()}
    except Exception as error:  # the border to a library that raises many kinds, most of several lines
        reason = " ".join(str(error).split())[:300]
    name = "/".join(filter(None, (repository, configuration)))
    raise DataError(
        f"cannot get {name} from the Hugging Face Hub ({reason}), and no copy of it is cached here; give a file or a "
        "folder instead"
    )


def _hub_cache(repository: str, configuration: str | None) -> list[Path]:
    """What `hf download` fetched."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        snapshot = Path(snapshot_download(repository, repo_type="dataset", local_files_only=True))
    except HFValidationError as error:
        raise DataError(
            f"there is no file or folder {repository}, and the Hugging Face Hub allows no data set of that name; give "
            "a file, a folder or a name such as openai/gsm8k"
        ) from error
    except LocalEntryNotFoundError:
        return []
    folders = [snapshot / configuration] if configuration else [snapshot / "data", snapshot]
    return [folder for folder in folders if folder.is_dir()]


def _datasets_cache(repository: str, configuration: str | None) -> list[Path]:
    """What `datasets.load_dataset` prepared, the newest first."""
    import datasets

    root = Path(datasets.config.HF_DATASETS_CACHE) / repository.replace("/", "___")
    names = sorted(folder.name for folder in root.glob("*/"))
    if not configuration and len(names) > 1 and "default" not in names:
        raise DataError(f"{repository} has the configurations {', '.join(names)}; name one: {repository}/{names[0]}")
    name = configuration or ("default" if "default" in names else "*")
    folders = [folder for folder in root.glob(f"{name}/*/*/") if folder.suffix != ".incomplete"]
    return sorted(folders, key=lambda folder: folder.stat().st_mtime, reverse=True)
