"""Data sets by their name on the Hugging Face Hub: the files of a cached copy, else of a download by `datasets`.

A cached copy comes first: no request for each process and run. Before a download one request tells whether there is a
network at all, where the library would try again and again for half a minute.
"""

import contextlib
import http.client
import re
import ssl
import urllib.error
import urllib.request
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
    except ModuleNotFoundError as error:
        raise DataError(
            f"there is no file or folder {repository}, and the Hugging Face Hub needs the package datasets: "
            "pip install 'tinyzero-sdk[hub]'"
        ) from error
    for folder in [*_hub_cache(repository, configuration), *_datasets_cache(repository, configuration)]:
        with contextlib.suppress(DataError):  # a snapshot holds what was fetched, which may be the README alone
            return split_files(folder)
    reason = "HF_HUB_OFFLINE is set" if datasets.config.HF_HUB_OFFLINE else unreachable(datasets.config.HF_ENDPOINT)
    if reason is None:
        try:
            data_set = datasets.load_dataset(repository, configuration)
            return {
                str(split): [Path(file["filename"]) for file in part.cache_files] for split, part in data_set.items()
            }
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


def unreachable(endpoint: str) -> str | None:
    """Why the endpoint cannot be reached, or None if it answers, whatever it says. Heeds the proxies set."""
    try:
        request = urllib.request.Request(f"{endpoint}/api/datasets", method="HEAD")
        with urllib.request.urlopen(request, timeout=_PATIENCE):
            return None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        # "Not found" and nonsense are answers, too; and for TLS the library has certificates of its own.
        if isinstance(error, urllib.error.HTTPError | http.client.HTTPException) or isinstance(reason, ssl.SSLError):
            return None
        return f"{endpoint}: {getattr(reason, 'strerror', None) or reason}"
