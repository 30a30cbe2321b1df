"""Child process of `sandbox`: takes a program on stdin, limits itself, runs it, says how it went.

Started by path in isolated mode, so it imports nothing but the standard library.
"""

import ctypes
import json
import os
import resource
import sys
import types

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
STARTS_PROCESSES = (
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.kill",
    "os.killpg", "pty.spawn", "subprocess.Popen",
)  # fmt: skip
CHANGES_FILES = (
    "os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir",
    "os.symlink", "os.truncate", "os.utime", "shutil.chown", "shutil.move", "shutil.rmtree",
)  # fmt: skip
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
DETAIL_LENGTH = 200


def main() -> None:
    """Run one job."""
    job = json.loads(sys.stdin.buffer.read())
    answers = os.dup(1)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    network = "sockets blocked"
    if leave_network():
        network = "own network namespace, sockets blocked"
    set_limits(job)
    guard(os.getcwd())
    token, passed, detail = job["token"], False, ""
    try:
        run(job["code"])
        passed = True
    except MemoryError:
        detail = "out of memory"
    except BaseException as error:
        detail = describe(error)
    answer = {"token": token, "passed": passed, "detail": detail, "network": network}
    os.write(answers, json.dumps(answer).encode())
    os._exit(0)  # threads of the program do not keep it alive


def run(code: str) -> None:
    """Run `code` as a module that `dataclasses` and `typing` can look up, but not as a script."""
    module = types.ModuleType("answer")
    sys.modules["answer"] = module
    exec(compile(code, "<answer>", "exec"), module.__dict__)


def leave_network() -> bool:
    """Move to a network namespace without interfaces; False where the kernel forbids it."""
    try:
        unshare = ctypes.CDLL(None, use_errno=True).unshare
    except (OSError, AttributeError):
        return False
    return any(unshare(flags) == 0 for flags in (CLONE_NEWUSER | CLONE_NEWNET, CLONE_NEWNET))


def set_limits(job: dict[str, int]) -> None:
    """Limit CPU time, memory and file size; no core dumps."""
    seconds, memory, size = job["cpu_seconds"], job["memory_bytes"], job["file_bytes"]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def guard(folder: str) -> None:
    """Refuse sockets, processes and changes to files outside `folder`, for good."""
    inside = os.path.realpath(folder) + os.sep

    def allowed(path: object) -> bool:
        if isinstance(path, int) or path is None:
            return True  # a descriptor: opening it was checked
        name = os.path.realpath(os.fsdecode(path))  # type: ignore[arg-type]
        return name.startswith(inside) or name == os.devnull

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event.startswith("socket.") or event in STARTS_PROCESSES:
            raise PermissionError(f"{event} is not allowed here")
        if event == "open":
            path, mode, flags = arguments
            text = mode if isinstance(mode, str) else ""
            bits = flags if isinstance(flags, int) else 0
            if (bits & WRITES or set(text) & set("wax+")) and not allowed(path):
                raise PermissionError(f"writing to {path!r} is not allowed here")
        elif event in CHANGES_FILES:
            paths = [item for item in arguments[:2] if isinstance(item, (str, bytes))]
            if not all(allowed(path) for path in paths):
                raise PermissionError(f"{event} outside the working folder is not allowed here")

    sys.addaudithook(hook)


def describe(error: BaseException) -> str:
    """Type and message, cut; an error whose message fails has none."""
    try:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:
        text = type(error).__name__
    return text[:DETAIL_LENGTH]


if __name__ == "__main__":
    main()
