"""Who Postgres runs as: root may not run it, so root lends it the account `nobody`."""

import contextlib
import os
import pwd
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.local.errors import LocalError

# In this order; small containers have only some of them. initdb wants one with a name.
CANDIDATES = ("nobody", "postgres", "daemon", "bin")


@dataclass(frozen=True, kw_only=True)
class Account:
    """An account the server runs as; -1 stays as we are."""

    uid: int = -1
    gid: int = -1

    @property
    def is_other(self) -> bool:
        return self.uid >= 0

    def own(self, path: Path) -> None:
        """Give a file or folder to this account."""
        if self.is_other:
            os.chown(path, self.uid, self.gid)

    def can_reach(self, path: Path) -> bool:
        """Whether this account may walk down to `path`, as far as the folders that exist tell."""
        return not self.is_other or all(_open_to_all(folder) for folder in path.resolve().parents)


def server_account() -> Account:
    if os.geteuid() != 0:
        return Account()
    for name in CANDIDATES:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Account(uid=entry.pw_uid, gid=entry.pw_gid)
    raise LocalError("PostgreSQL does not run as root, and there is no account `nobody` to lend it")


def readable_copy(root: Path, parts: Sequence[str], target: Path) -> Path:
    """`root` itself when everybody may read these folders of it, else a copy of them at `target`.

    The copy is laid out alike: programs find their libraries by the way from one to the other.
    """
    sources = [root / part for part in parts if (root / part).is_dir()]
    if all(map(_is_open, sources)):
        return root
    if not target.exists():
        unfinished = target.with_name(target.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        for source in sources:
            copy = unfinished / source.relative_to(root)
            shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns("include"))
        _open_tree(unfinished)
        unfinished.rename(target)
    return target


def _open_to_all(folder: Path) -> bool:
    return not folder.exists() or bool(folder.stat().st_mode & stat.S_IXOTH)


def _is_open(folder: Path) -> bool:
    # One umask made the whole tree, so one file and the folders above it speak for all of it.
    file = next(path for path in folder.resolve().rglob("*") if path.is_file())
    return all(map(_open_to_all, file.parents)) and bool(file.stat().st_mode & stat.S_IROTH)


def _open_tree(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            executable = 0o111 if mode & stat.S_IXUSR else 0
            path.chmod(stat.S_IMODE(mode) | 0o444 | executable)
