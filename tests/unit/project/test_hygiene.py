"""What may not get into the repository, and what must agree across its files."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
SOURCES = {
    ".py",
    ".pyi",
    ".md",
    ".toml",
    ".lock",
    ".proto",
    ".yaml",
    ".yml",
    ".json",
    ".sh",
    ".svg",
    ".lua",
    ".cfg",
    "",
}

# put together from parts, so that this file does not hold them itself
REGISTRIES = re.compile("|".join((r"pypi\." + "org", "python" + "hosted", "npm" + "js", r"deb\." + "debian")))
MACHINE_PATHS = re.compile(r"(?<![\w./}-])/(?:" + "|".join(("root", "work", r"home/\w+")) + r")/")

PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+?)(?:\s*;.*?)?\s*\\$", re.MULTILINE)


def tracked() -> list[Path]:
    """Return the files of the repository, as git knows them."""
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=False, cwd=ROOT)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert len(paths) > 20
    return [path for path in paths if path.suffix in SOURCES and path.is_file()]


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found = []
    for path in tracked():
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [f"{path.relative_to(ROOT)}: {hit[0]}" for hit in REGISTRIES.finditer(text)]
        if path.parent.name not in {"smuggle", "faults"}:  # raw cases hold any bytes
            found += [f"{path.relative_to(ROOT)}: {hit[0]}" for hit in MACHINE_PATHS.finditer(text)]
    assert found == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_a_lock_pins_and_hashes_everything(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    requirements = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert requirements
    assert len(PIN.findall(text)) == len(requirements)
    assert "://" not in text
    assert not re.search(r"^\s*-", text.replace("    --hash=sha256:", ""), re.MULTILINE)  # no option, no other index


def test_the_locks_agree() -> None:
    pins = {lock.stem: dict(PIN.findall(lock.read_text(encoding="utf-8"))) for lock in LOCKS}
    assert {"run", "dev", "build", "demo-model", "bench", "clients"} == pins.keys()
    assert pins["run"].items() <= pins["dev"].items()
    assert pins["build"].items() <= pins["dev"].items()


def test_ci_runs_what_the_readme_says() -> None:
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = [line for line in script.splitlines() if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["exec make test"]


def test_links_between_the_documents_lead_somewhere() -> None:
    broken = []
    for page in [path for path in tracked() if path.suffix == ".md"]:
        targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
        inside = [target for target in targets if "://" not in target]
        broken += [f"{page.relative_to(ROOT)}: {target}" for target in inside if not (page.parent / target).exists()]
    assert broken == []
