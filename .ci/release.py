"""Builds, checks and tags all distributions together.

    python .ci/release.py build      # into dist/, and checks what is in it
    python .ci/release.py tag        # the same in a clean checkout of main, and tags it; then: git push origin vVERSION
    python .ci/release.py check TAG  # whether a tag, all distributions and the changelog have one version

A pushed tag is checked, built and published by .github/workflows/release.yml. The checks: one version for all, an entry
of it in the changelog, bounds of our distributions on each other that this version satisfies, metadata that PyPI
accepts, and a licence and a README in each.
"""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT, ROOT / "trainer", *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]


def main() -> None:
    match sys.argv[1:]:
        case ["build"]:
            build(ROOT / "dist")
        case ["build", folder]:
            build(Path(folder))
        case ["tag"]:
            tag()
        case ["check", tagged]:
            if tagged != (expected := f"v{released_version()}"):
                sys.exit(f"{tagged} is not {expected}, the version of the distributions")
        case _:
            sys.exit(__doc__)


def build(folder: Path) -> str:
    """A source distribution and a wheel of each distribution; returns their version."""
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"{folder} is not empty; delete it first")
    for source in FOLDERS:
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wheels = {path.name.partition("-")[0]: metadata(path) for path in sorted(folder.glob("*.whl"))}
    assert len(wheels) == len(FOLDERS) == len(list(folder.glob("*.tar.gz")))
    version = one_version(str(found.version) for found in wheels.values())
    for name, found in wheels.items():
        assert found.description, f"{name} has no README"
        assert found.license_expression, f"{name} has no licence"
        for requirement in found.requires_dist or ():
            if requirement.name.startswith("tinyzero-") and not requirement.specifier.contains(version):
                sys.exit(f"{name} needs {requirement}, which {version} is not")
        print(f"{name} {version}: {sum(path.stat().st_size for path in folder.glob(f'{name}-*')):,} bytes")
    return version


def metadata(wheel: Path) -> Metadata:
    """The wheel's metadata, valid by the rules of PyPI; its source distribution has the same."""
    source = wheel.with_name("-".join(wheel.name.split("-")[:2]) + ".tar.gz")
    with zipfile.ZipFile(wheel) as archive, tarfile.open(source) as package:
        names = archive.namelist()
        text = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA")))
        assert any(".dist-info/licenses/" in name for name in names), f"{wheel.name} has no licence"
        inner = package.extractfile(f"{source.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert inner is not None
        assert inner.read() == text, f"{source.name} and {wheel.name} differ"
    return Metadata.from_email(text, validate=True)


def released_version() -> str:
    """The version of all distributions in the checkout, which is in the changelog."""
    projects = [tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8")) for folder in FOLDERS]
    version = one_version(project["project"]["version"] for project in projects)
    if version not in re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE):
        sys.exit(f"CHANGELOG.md has no entry '## {version}'; rename 'Unreleased'")
    return version


def one_version(versions: Iterable[str]) -> str:
    different = sorted(set(versions))
    if len(different) > 1:
        sys.exit(f"the distributions have several versions: {', '.join(different)}")
    return different[0]


def tag() -> None:
    """Build, and tag the commit; nothing is tagged unless all checks pass."""
    if git("status", "--porcelain") or git("branch", "--show-current") != "main":
        sys.exit("release from a clean checkout of main")
    version = released_version()
    assert build(ROOT / "dist") == version
    git("tag", "-a", f"v{version}", "-m", f"Version {version}")
    print(f"tagged; publish with: git push origin v{version}")


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
