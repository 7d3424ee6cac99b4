"""Hooks for mkdocs: the site also has README.md, as its first page, and every file outside docs/ that a page links to.

Links stay as they are for readers of the repository; files that are no pages become pages with their text.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()[^)#\s:]+(?=[)#])")
LANGUAGES = {".py": "python", ".sh": "bash", ".sbatch": "bash", ".yaml": "yaml"}

origins = {"index.md": "README.md"}
"""The path in the repository of each page in the site."""


def on_files(files: Files, config: MkDocsConfig) -> None:
    origins.update({file.src_uri: f"docs/{file.src_uri}" for file in files.documentation_pages()})
    waiting = sorted(origins.values())
    for origin in waiting:
        if origin.endswith(".md"):
            linked = {target(origin, link) for link in LINK.findall((ROOT / origin).read_text(encoding="utf-8"))}
            waiting += [path for path in sorted(linked) if path not in waiting and (ROOT / path).is_file()]
        uri = in_site(origin)
        if uri in files.src_uris:
            continue
        if origin.endswith((".md", ".png")):
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / origin)))
        else:
            text, language = (ROOT / origin).read_text(encoding="utf-8"), LANGUAGES.get(Path(origin).suffix, "")
            content = f"# `{origin}`\n\n````{language}\n{text}\n````\n"
            files.append(File.generated(config, uri, content=content, inclusion=InclusionLevel.NOT_IN_NAV))
        origins[uri] = origin


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    origin, here = origins[page.file.src_uri], posixpath.dirname(page.file.src_uri)
    markdown = re.sub(r"^(```\w+) .*", r"\1", markdown, flags=re.MULTILINE)  # what only tests read
    markdown = re.sub(r"`[^`\n]+`", lambda code: code[0].replace("\\|", "|"), markdown)  # GitHub alone unescapes it
    return LINK.sub(lambda link: posixpath.relpath(in_site(target(origin, link[0])), here or "."), markdown)


def target(origin: str, link: str) -> str:
    """The path in the repository of what a page links to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))


def in_site(path: str) -> str:
    """The path in the site of a path in the repository."""
    page = path if path.endswith((".md", ".png")) else f"{path}.md"
    return "index.md" if path == "README.md" else page.removeprefix("docs/")
