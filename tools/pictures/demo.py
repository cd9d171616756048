"""``python -m tools.pictures.demo``: run the demo, run the lines it prints, and draw both as a terminal.

Nothing in the picture is made up; it is not among the pictures that ``make check`` compares, because times and process
ids differ from run to run.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "pictures" / "demo.svg"
COLUMNS = 126
EXPLAIN = ".venv/bin/warmroute routes explain --model magika"
"""Shown instead of /routes, the second line that the demo prints, whose JSON is too long for a picture."""
READY_S = 60.0


def main() -> int:
    """Draw docs/pictures/demo.svg; return the exit status."""
    with tempfile.TemporaryDirectory(prefix="warmroute-demo-") as directory:
        ready = Path(directory) / "ready.json"
        command = [str(Path(sys.executable).with_name("warmroute")), "up", "--models", str(ROOT / "models")]
        with (Path(directory) / "out").open("w+b") as out:
            process = subprocess.Popen([*command, "--ready-file", str(ready)], stdout=out, stderr=out, cwd=ROOT)
            try:
                _await(ready, process)
                said = _settled(Path(out.name))
                lines = [line.strip() for line in said.splitlines() if line.lstrip().startswith("curl ")]
                tried = [(line, _run(line)) for line in (EXPLAIN if "/routes" in line else line for line in lines)]
            finally:
                process.send_signal(signal.SIGINT)
                code = process.wait(60)
    if code != 0 or not tried:
        print(f"demo: ended with {code}, {len(tried)} lines to try:\n{said}", file=sys.stderr)
        return 1
    PICTURE.write_text(_draw(said, tried), encoding="utf-8")
    return 0


def _await(ready: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_S
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("demo: it did not become ready")
        time.sleep(0.1)


def _settled(out: Path) -> str:
    """Return what it said, once it has said nothing new for a second."""
    said = b""
    while True:
        time.sleep(1)
        before, said = said, out.read_bytes()
        if said and said == before:
            return said.decode("utf-8", "replace")


def _run(line: str) -> str:
    environ = os.environ | {"COLUMNS": str(COLUMNS)}
    command = ["sh", "-c", line]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True, cwd=ROOT, env=environ)
    return done.stdout.rstrip("\n")


def _draw(said: str, tried: list[tuple[str, str]]) -> str:
    with Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text("$ make demo", style="bold green"))
        console.print(Text.from_ansi(said.rstrip("\n")))
        for line, answer in tried:
            console.print()
            console.print(Text(f"$ {line}", "bold green"))
            console.print(Text(answer))
        svg = console.export_svg(title="make demo, and the lines it prints", unique_id="demo")
    svg = svg.replace("<svg ", '<svg xml:space="preserve" ', 1)
    # the fonts that rich would have fetched from elsewhere: any monospaced one will do
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    sys.exit(main())
