"""Every link of the built site leads to a file of it, and every anchor to an id of that file."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

SHOWN = 20
"""Dead links that are listed: one in the navigation is on every page."""


class Anchors(HTMLParser):
    """The links and the ids of a page.

    Attributes:
        links: What it links to or loads, as written.
        ids: Where links can lead.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.ids: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what a tag names."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.add(value)
            elif value and (name == "id" or (name, tag) == ("name", "a")):
                self.ids.add(value)


def dead_links(site: Path) -> list[str]:
    """Links that lead nowhere, each with its page; those out of the site are not followed."""
    pages = {
        path.resolve(): Anchors(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")
    }
    dead = []
    for page, anchors in pages.items():
        if page.name == "404.html":  # its links begin at the root of a server
            continue
        for link in sorted(anchors.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if target.is_dir():
                target /= "index.html"
            fragment = unquote(parts.fragment)
            there = target in pages and (not fragment or fragment in pages[target].ids)
            if not there and (target in pages or not target.is_file()):
                dead.append(f"{page.relative_to(site.resolve())} -> {link}")
    return dead


def on_post_build(config):
    """End the build where a link is dead."""
    from mkdocs.exceptions import PluginError

    if dead := dead_links(Path(config.site_dir)):
        more = f"\nand {len(dead) - SHOWN} others" if len(dead) > SHOWN else ""
        raise PluginError(f"{len(dead)} links lead nowhere:\n" + "\n".join(dead[:SHOWN]) + more)
