"""``python -m tools.pictures [--check]``: write docs/pictures/*.svg, or say which are stale."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.pictures.scenes import SCENES

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"


def main() -> int:
    """Draw all pictures; return the exit status: 1 where ``--check`` found a stale one."""
    parser = argparse.ArgumentParser(prog="python -m tools.pictures", description="Draw the pictures of docs/.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 where a picture is stale")
    check = parser.parse_args().check
    stale = []
    for name, scene in SCENES.items():
        path, text = FOLDER / f"{name}.svg", scene().text()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if not check:
                FOLDER.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    if check and stale:
        print(f"stale: {', '.join(stale)}: make pictures", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
