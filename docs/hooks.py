"""What the site takes from outside of docs/: results, notebooks, CONTRIBUTING and CHANGELOG; and formulas as MathML.

MkDocs calls these functions while it builds. Formulas need no script in the browser, so the site works offline.
"""

import functools
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks/run.md",
}
_FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', flags=re.DOTALL)
_MATHJAX = re.compile(r"<script data-mkdocs-jupyter-mathjax=.*?</script>", flags=re.DOTALL)
_PICTURE = re.compile(r'<p>(?P<img><img alt="(?P<words>[^"]+)"[^>]*>)</p>')
_PRINTED = re.compile(
    r'(?P<start>class="(?:language-text highlight|jp-RenderedText [^"]*)"[^>]*>'
    r'(?:<span class="filename">[^<]*</span>)?\s*)<pre(?P<text>>.*?</pre>)',
    flags=re.DOTALL,
)
_LONGEST_ROW = 100  # characters; what is longer is a sentence, not a row of a printed table
_CELL = re.compile(r"<td.*?</td>", flags=re.DOTALL)
_PAGE = re.compile(r"(?<![\w/])docs/(?P<name>[\w-]+(?:/[\w-]+)?)\.md")
_LINK = re.compile(
    r"(?P<text>!?\[[^\]]*\])\((?P<target>[^)#:\s]+|https?:[^)\s]*|mailto:[^)\s]*)(?P<anchor>#[^)\s]*)?\)"
)


@event_priority(100)  # before the plugin that renders notebooks looks for them
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that lie elsewhere in the repository."""
    for path, target in _places().items():
        if path.suffix == ".md":
            text = _moved(path.read_text(encoding="utf-8"), path, target)
            files.append(File.generated(config, target, content=text))
        else:
            files.append(File.generated(config, target, abs_src_path=str(path)))
    files.append(File.generated(config, "results/index.md", content=_results()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files that lie elsewhere in the repository lead to their places on the site."""
    path = page.file.abs_src_path
    return markdown if page.file.generated_by or path is None else _moved(markdown, Path(path), page.file.src_uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write formulas as MathML, link the pages that docstrings name, keep numbers beside errors, caption pictures."""
    from html import unescape

    def mathml(found: re.Match[str]) -> str:
        display = "block" if found["tag"] == "div" else "inline"
        return convert(unescape(found["latex"]), display=display)

    up = "../" * page.url.count("/")
    html = _FORMULA.sub(mathml, html)
    html = _PICTURE.sub(r"<figure>\g<img><figcaption>\g<words></figcaption></figure>", html)
    html = _CELL.sub(lambda found: found.group().replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"), html)
    return _PAGE.sub(lambda found: f'<a href="{up}{found["name"]}/">{found["name"]}</a>', html)


@event_priority(-100)  # after the plugin that renders notebooks has put it there
def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Leave out the script that fetches MathJax: no formula is left to it. Mark printed sentences, which wrap."""

    def marked(found: re.Match[str]) -> str:
        words = re.sub("<[^>]*>|&[^;]*;", "", found["text"])
        sentences = max(map(len, words.splitlines())) > _LONGEST_ROW
        return f"{found['start']}<pre{' class=sentences' * sentences}{found['text']}"

    return _PRINTED.sub(marked, _MATHJAX.sub("", output))


def _results() -> str:
    """Return the page that lists the pages of results by their titles."""
    pages = {
        path: target for path, target in _places().items() if target.startswith("results/") and path.suffix == ".md"
    }
    lines = [
        f"- [{path.read_text(encoding='utf-8').partition(chr(10))[0].lstrip('# ')}]({target.removeprefix('results/')})"
        for path, target in pages.items()
    ]
    return "\n".join(["# All results", "", "[Benchmarks](../benchmarks/index.md) says what they show.", "", *lines, ""])


@functools.cache
def _places() -> dict[Path, str]:
    """Return the place on the site of each file from outside of docs/."""
    places = {ROOT / name: target for name, target in PAGES.items()}
    places |= {path: f"notebooks/{path.name}" for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
    results = ROOT / "benchmarks" / "results"
    for kind in ("md", "png", "svg"):
        places |= {path: f"results/{path.relative_to(results)}" for path in sorted(results.rglob(f"*.{kind}"))}
    return places


def _moved(text: str, path: Path, target: str) -> str:
    """Return the text with its links as seen from its new place; names of files that the site has not stay as text."""

    def link(found: re.Match[str]) -> str:
        if found["target"].startswith(("http", "mailto:")):
            return found.group()
        aim = (path.parent / found["target"]).resolve()
        up, anchor = "../" * target.count("/"), found["anchor"] or ""
        if aim == ROOT / "README.md":
            return f"{found['text']}({up}index.md)"
        place = _places().get(aim) or (
            str(aim.relative_to(ROOT / "docs")) if aim.is_relative_to(ROOT / "docs") else None
        )
        return f"{found['text']}({up}{place}{anchor})" if place else found["text"][found["text"].index("[") + 1 : -1]

    return _LINK.sub(link, text)
