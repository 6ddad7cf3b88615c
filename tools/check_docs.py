#!/usr/bin/env python3
"""Checks the pages that people read: README.md and docs/**/*.md.

    a line has at most 100 columns. Excepted, because Markdown cannot break them: rows of tables, lines that
    begin with an image, and lines that are one word after their list or quote mark (a URL, a path)
    a page has at most 200 lines
    a relative link leads to a file or directory that exists; #anchor leads to a heading of that page

Links are checked in every other Markdown file of the repository too.
Exit 0 when clean, 1 with one line per finding.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_COLUMNS = 100
MAX_LINES = 200
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
FENCE = re.compile(r"^\s*(```|~~~)")


def pages():
    """Every Markdown file that is tracked or new, ignored ones excepted."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout
    return sorted(path for path in (ROOT / name for name in listed.splitlines()) if path.exists())


def is_bound(path):
    """Whether the page must keep to columns and lines."""
    name = path.relative_to(ROOT).as_posix()
    return name == "README.md" or name.startswith("docs/")


def prose(text):
    """(line number, line) outside of code blocks."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            inside = not inside
        elif not inside:
            yield number, line


def is_unbreakable(line):
    words = re.sub(r"^\s*(?:[-*>]|\d+\.)?\s*", "", line)
    return line.lstrip().startswith(("|", "![")) or " " not in words.rstrip()


def anchors(text):
    """GitHub's anchors of a page's headings."""
    found = set()
    for _, line in prose(text):
        if match := re.match(r"#+\s+(.*)", line):
            heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1]).strip().lower()
            slug = re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")
            copies = sum(1 for anchor in found if re.fullmatch(re.escape(slug) + r"(-\d+)?", anchor))
            found.add(f"{slug}-{copies}" if copies else slug)
    return found


def dead_links(path, text):
    for number, line in prose(text):
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z][a-z+.-]*:", target):
                continue  # another site
            name, _, anchor = target.partition("#")
            other = (path.parent / name).resolve() if name else path
            if not other.exists():
                yield number, f"link to {target}, which does not exist"
            elif anchor and other.suffix == ".md" and anchor not in anchors(other.read_text(encoding="utf-8")):
                yield number, f"link to {target}: the page has no such heading"


def findings(path):
    text = path.read_text(encoding="utf-8")
    yield from dead_links(path, text)
    if not is_bound(path):
        return
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        yield 1, f"{len(lines)} lines, more than {MAX_LINES}: split the page"
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS and not is_unbreakable(line):
            yield number, f"{len(line)} columns, more than {MAX_COLUMNS}"


def main():
    files = pages()
    found = [f"{path.relative_to(ROOT)}:{number}: {what}" for path in files for number, what in findings(path)]
    print("\n".join(found) if found else f"docs: {len(files)} pages, no finding")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
