"""A progress bar on the terminal that standard error is; imported only when one is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task
from rich.progress_bar import ProgressBar
from rich.table import Column
from rich.text import Text

BAR_WIDTH: Final = 24


def bar_of(share: Callable[[], float | None], sentence: Callable[[], str]) -> Progress:
    """Not started yet. It asks by itself how far it is, several times a second."""
    bar = Progress(
        SpinnerColumn(),
        _Share(share),
        _Sentence(sentence),
        console=Console(stderr=True, highlight=False),
        transient=True,
        redirect_stdout=False,
    )
    bar.add_task("", total=None)
    return bar


class _Share(ProgressColumn):
    """A bar that fills, or that moves to and fro where the whole is not known."""

    def __init__(self, share: Callable[[], float | None]) -> None:
        super().__init__(Column(no_wrap=True))
        self._share = share
        self._drawn = BarColumn(bar_width=BAR_WIDTH)

    def render(self, task: Task) -> ProgressBar:
        share = self._share()
        task.total, task.completed = (None, 0.0) if share is None else (1.0, share)
        return self._drawn.render(task)


class _Sentence(ProgressColumn):
    def __init__(self, sentence: Callable[[], str]) -> None:
        super().__init__(Column(no_wrap=True, overflow="ellipsis", ratio=1))
        self._sentence = sentence

    def render(self, task: Task) -> Text:
        return Text(self._sentence())
