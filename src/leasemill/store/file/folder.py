"""The folder of a log: what it may be, and making it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from leasemill.errors import Broken, Invalid

LOCK_NAME: Final = "lock"
MANIFEST_NAME: Final = "manifest"
OWN_NAMES: Final = re.compile(
    r"lock|manifest\.new|segment-[0-9a-f]{16}-[0-9]+(\.new)?|snapshot-.*|spare.*|reserve(-snapshot)?|scratch-.*\.new"
    r"|keys|keys\.lock|keys\.new|workers|archive"
)
"""The files that a folder of jobs may hold beside its manifest."""
PLACEHOLDERS: Final = frozenset({".gitkeep", ".keep", ".gitignore", ".gitattributes", ".DS_Store", "lost+found"})
"""The files that an empty folder may hold: of version control, of systems, and of a file system's root."""
NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs", "fuse.s3fs", "9p"}
)


def make_folder(path: Path) -> list[Path]:
    """Make the folder, if it is not there. One that is there must be empty, or a folder of jobs. Returns the folders
    that have a new entry, to be synced."""
    made = [one for one in (path, *path.parents) if not one.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except FileExistsError:
        raise Invalid(f"{path} is a file, not a folder: name another path") from None
    if not made:
        refuse_foreign(path)
    return [one.parent for one in made]


def refuse_foreign(path: Path) -> None:
    """Others' files are not mixed with a log, which would be made in /etc as well. A folder whose creation was
    interrupted holds nothing but what a log has."""
    if (path / MANIFEST_NAME).exists():
        return
    names = sorted(entry.name for entry in path.iterdir())
    foreign = [name for name in names if name not in PLACEHOLDERS and not OWN_NAMES.fullmatch(name)]
    if foreign:
        raise Invalid(
            f"{path} is not a Leasemill folder and not empty (it holds {foreign[0]}): name a new or an empty folder, "
            f"for example file:{path / 'leasemill'}"
        )


def refuse_network_file_system(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> None:
    """Refuse network file systems where they can be recognized: their locks and syncs are not to be trusted."""
    kind = _file_system(path, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise Broken(
            f"{path} is on a network file system ({kind}), whose locks and syncs a log cannot rely on; "
            "use a local folder, or postgresql:// for several machines"
        )


def _file_system(path: Path, mounts: Path) -> str | None:
    """Return the type of the file system a path is on, where the system reports it (Linux)."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    here = path.resolve()
    best: tuple[int, str] = (-1, "")
    for line in lines:
        left, separator, right = line.partition(" - ")
        fields = left.split()
        if not separator or len(fields) < 5:
            continue
        point = Path(fields[4].encode().decode("unicode_escape"))
        if here.is_relative_to(point) and len(point.parts) >= best[0]:
            best = (len(point.parts), right.split()[0])
    return best[1] or None
