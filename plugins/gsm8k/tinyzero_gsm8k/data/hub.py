"""GSM8K from the Hugging Face Hub: out of one of its caches here, else by download.

The cache comes first, since the dataset does not change: no request for each process and run. Before a download
one request tells whether there is a network at all, where the library would try again and again for half a minute.
"""

import http.client
import ssl
import urllib.error
import urllib.request
from pathlib import Path

from tinyzero_gsm8k.data.folders import Rows, read_folder, reading
from tinyzero_sdk.errors import DataError

REPOSITORY, CONFIGURATION = "openai/gsm8k", "main"
SPLITS = ("train", "test")
_PATIENCE = 5.0  # seconds


def published() -> dict[str, Rows]:
    """The rows of GSM8K's splits.

    Raises:
        DataError: there is neither a copy in a cache nor a network; the message names both ways out.
    """
    return _from_hub_cache() or _from_datasets_cache() or _download()


def _from_hub_cache() -> dict[str, Rows] | None:
    """What `hf download` fetched."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(REPOSITORY, repo_type="dataset", local_files_only=True)) / CONFIGURATION
    except LocalEntryNotFoundError:
        return None
    # A snapshot holds what was asked for, which may be the README alone.
    if not all(any(folder.glob(f"{split}-*.parquet")) for split in SPLITS):
        return None
    return read_folder(folder)


def _from_datasets_cache() -> dict[str, Rows] | None:
    """What `datasets.load_dataset` prepared."""
    import datasets

    root = Path(datasets.config.HF_DATASETS_CACHE) / REPOSITORY.replace("/", "___") / CONFIGURATION
    for folder in sorted(root.glob("*/*"), key=lambda folder: folder.stat().st_mtime, reverse=True):
        files = {split: folder / f"gsm8k-{split}.arrow" for split in SPLITS}
        if all(file.is_file() for file in files.values()):
            with reading(f"the cached copy of {REPOSITORY} in {folder}"):
                return {split: datasets.Dataset.from_file(str(file)).to_list() for split, file in files.items()}
    return None


def _download() -> dict[str, Rows]:
    import datasets

    reason = "HF_HUB_OFFLINE is set" if datasets.config.HF_HUB_OFFLINE else unreachable(datasets.config.HF_ENDPOINT)
    if reason is None:
        try:
            with reading(REPOSITORY):
                found = datasets.load_dataset(REPOSITORY, CONFIGURATION)
                return {split: found[split].to_list() for split in SPLITS}
        except DataError as error:
            reason = str(error.__cause__).strip().partition("\n")[0]
    raise DataError(
        f"cannot get {REPOSITORY} from the Hugging Face Hub ({reason}), and no copy of it is cached here; give a copy "
        "with task.path=FOLDER_OR_FILE, or take made-up problems with task.source=synthetic"
    )


def unreachable(endpoint: str) -> str | None:
    """Why the endpoint cannot be reached, or None if it answers, whatever it says. Heeds the proxies set."""
    try:
        request = urllib.request.Request(f"{endpoint}/api/datasets/{REPOSITORY}", method="HEAD")
        with urllib.request.urlopen(request, timeout=_PATIENCE):
            return None
    except (urllib.error.HTTPError, http.client.HTTPException):
        return None  # "not found" and nonsense are answers, too
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):
            return None  # something answers; the library has certificates of its own
        return f"{endpoint}: {getattr(reason, 'strerror', None) or reason}"
