"""HTML as tests look at it: elements with their attributes and texts, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    text: str = ""
    """All of it, that of its children included."""


@dataclass
class Markup(HTMLParser):
    elements: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"an attribute of <{tag}> is given twice: {names}"
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def find(self, tag: str, **attributes: str) -> list[Element]:
        wanted = {name.replace("_", "-").strip("-"): value for name, value in attributes.items()}
        return [
            one
            for one in self.elements
            if one.tag == tag and all(one.attributes.get(name) == value for name, value in wanted.items())
        ]

    def value(self, name: str) -> str:
        """Of an input field."""
        return next(one.attributes["value"] for one in self.find("input", name=name))

    @property
    def text(self) -> str:
        return next(one.text for one in self.elements if one.attributes.get("id") == "content")

    @property
    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        """What there is without any of the values: tags and the names of their attributes."""
        return [(one.tag, tuple(one.attributes)) for one in self.elements]

    def rows(self) -> list[str]:
        return [one.attributes["data-key"] for one in self.find("tr") if "data-key" in one.attributes]


def parsed(text: str) -> Markup:
    markup = Markup()
    markup.feed(text)
    markup.close()
    return markup
