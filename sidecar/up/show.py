"""What ``warmroute up`` shows: bars while models load on a terminal, plain lines elsewhere, then what to try."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn
from rich.text import Text

from sidecar.up.fleet import OUTPUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import Console

    from sidecar.up.fleet import WorkerView

_QUIET = frozenset({"ts", "level", "event", "process", "component", "text"})
_LOUD = frozenset({"process.exited", "process.restarting"})


class Show:
    """Writes to one console. Until :meth:`settle` the workers' progress is drawn, afterwards only lines are added."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tasks: dict[str, TaskID] = {}
        self._said: dict[str, str] = {}
        self._progress: Progress | None = None

    def line(self, text: str = "", style: str = "") -> None:
        """Add one line, never wrapped, so that it can be copied."""
        self._console.print(Text(text, style=style), soft_wrap=True)

    def note(self, text: str, style: str = "") -> None:
        """Add one line with the time of day."""
        self.line(f"{time.strftime('%H:%M:%S')}  {text}", style)

    def workers(self, views: Iterable[WorkerView]) -> None:
        """Show how far each worker has come."""
        if self._progress is None and self._console.is_terminal:
            self._progress = _bars(self._console)  # not before: it has a thread, and processes are forked until now
            self._progress.start()
        for view in views:
            done, total = view.loaded
            summary = view.summary()
            if self._progress is not None:
                task = self._tasks.get(view.id)
                if task is None:
                    task = self._tasks[view.id] = self._progress.add_task(summary, total=None, worker=view.id)
                self._progress.update(task, completed=done, total=total or None, description=summary)
            else:
                quarters = f" {100 * (4 * done // total) // 4} % of {total / 1e6:.1f} MB" if total else ""
                said = summary + (quarters if "loading" in summary else "")
                if self._said.get(view.id) != said:
                    self._said[view.id] = said
                    self.line(f"  {view.id:<10} {said}")

    def settle(self) -> None:
        """Leave the progress as it stands."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def event(self, source: str, event: Mapping[str, Any]) -> None:
        """Add a line for an event that is worth one: a model's state, a process that died, a warning, plain output."""
        name, level = event["event"], event.get("level", "info")
        if name == OUTPUT:
            self.line(f"          {source}: {event['text']}", "dim")
        elif name == "model.state":
            reason = f" ({event['reason']})" if event.get("reason") else ""
            self.note(f"{source}: {event.get('model', '')} {event.get('from', '')} → {event.get('to', '')}{reason}")
        elif level in ("warning", "error") or name in _LOUD:
            fields = " ".join(f"{key}={value}" for key, value in event.items() if key not in _QUIET)
            self.note(f"{source}: {name} {fields}", "red" if level == "error" else "yellow")


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("  {task.fields[worker]:<10}"),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TextColumn("{task.description}"),
        console=console,
    )
