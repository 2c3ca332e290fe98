"""Worker processes which decide an answer within a hard deadline.

A deadline by signal works only in the main thread of a Unix process, and a
thread cannot be stopped; a process can. Each worker is a bare interpreter
started with a command line of its own: it never runs the caller's __main__,
so no guard is needed and notebooks and threads may use it, and it imports
neither jax nor the model. Requests and replies are JSON behind a length.

A worker which misses the deadline is killed and replaced, and so is one which
has served many requests; its memory is bounded where the platform can.
"""

import atexit
from collections.abc import Callable, Sequence
import contextlib
import json
import os
import queue
import struct
import subprocess
import sys
import threading

MAX_TASKS = 2000
MEMORY_BYTES = 1 << 30
START_SEC = 60.0

_HEADER = struct.Struct(">I")
_COMMAND = (
  "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
  "from dapo_jax.rewards import pool; pool.serve()"
)


class WorkerError(RuntimeError):
  """A worker process could not be started."""


def _send(stream, message) -> None:
  data = json.dumps(message).encode("ascii")
  stream.write(_HEADER.pack(len(data)) + data)
  stream.flush()


def _receive(stream):
  header = stream.read(_HEADER.size)
  if len(header) < _HEADER.size:
    return None
  data = stream.read(*_HEADER.unpack(header))
  return json.loads(data)


def _bound_memory(size: int) -> None:
  try:
    import resource
  except ImportError:  # Windows has no such limits.
    return
  for name in ("RLIMIT_AS", "RLIMIT_DATA"):
    with contextlib.suppress(AttributeError, ValueError, OSError):
      kind = getattr(resource, name)
      hard = resource.getrlimit(kind)[1]
      if hard != resource.RLIM_INFINITY:
        size = min(size, hard)
      resource.setrlimit(kind, (size, hard))
  with contextlib.suppress(ValueError, OSError):
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve() -> None:
  """Answers requests on standard input until it closes; runs in a worker."""
  import signal

  # Control-C reaches the whole process group; the parent ends its workers.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  requests, replies = sys.stdin.buffer, sys.stdout.buffer
  sys.stdout = sys.stderr  # Nothing but replies may enter the pipe.
  _bound_memory(MEMORY_BYTES)
  from dapo_jax.rewards import math_equal, math_numeric

  math_numeric.evaluate([("root", ("num", 2), ("num", 2))])
  _send(replies, "ready")
  while (request := _receive(requests)) is not None:
    try:
      reply = ["ok", math_equal.equal_texts(*request, heavy=True)]
    except Exception as error:  # The pool reports it as a verdict.
      reply = ["error", f"{type(error).__name__}: {error}"[:200]]
    _send(replies, reply)


class _Worker:
  """One process and the thread which reads its replies."""

  def __init__(self, command: Sequence[str]):
    self.tasks = 0
    self.replies: queue.SimpleQueue = queue.SimpleQueue()
    try:
      self.process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
      )
    except OSError as error:
      raise WorkerError(
        f"cannot start a verifier process with {command[0]!r}: {error}"
      ) from error
    threading.Thread(target=self._read, daemon=True).start()
    if self._reply(START_SEC) != "ready":
      code = self.process.poll()
      self.kill()
      raise WorkerError(
        "a verifier process did not start (exit status "
        f'{code}); try: {command[0]} -c "import dapo_jax.rewards.math_equal"'
      )

  def _read(self) -> None:
    message = ""
    while message is not None:
      try:
        message = _receive(self.process.stdout)
      except (OSError, ValueError):
        message = None
      self.replies.put(message)

  def _reply(self, timeout_sec: float):
    try:
      return self.replies.get(timeout=timeout_sec)
    except queue.Empty:
      return "timeout"

  def ask(self, request, timeout_sec: float):
    """The reply, 'timeout', or None when the process has died."""
    self.tasks += 1
    try:
      _send(self.process.stdin, request)
    except (OSError, ValueError):
      return None
    return self._reply(timeout_sec)

  def kill(self) -> None:
    with contextlib.suppress(OSError):
      self.process.kill()
    self.process.wait()
    for stream in (self.process.stdin, self.process.stdout):
      with contextlib.suppress(OSError):
        stream.close()


class Pool:
  """Worker processes, started when first needed and then kept.

  Args:
    workers: Most processes at a time; 0 for one per usable core.
    command: How to start one; None for this package's own.
  """

  def __init__(self, workers: int = 0, command: Sequence[str] | None = None):
    if workers < 0:
      raise ValueError(f"workers must be 0 (one per core) or more: {workers}")
    self.workers = workers or usable_cores()
    if command is None:
      if not sys.executable:
        raise WorkerError(
          "sys.executable is empty: this interpreter does not "
          "know how to start another"
        )
      command = (
        sys.executable,
        "-I",
        "-c",
        _COMMAND,
        json.dumps(_search_path()),
      )
    self._command = tuple(command)
    self._idle: list[_Worker] = []
    self._lock = threading.Lock()
    self._slots = threading.BoundedSemaphore(self.workers)
    self._pid = os.getpid()

  def ask(self, request: list, timeout_sec: float) -> tuple[str, object]:
    """Puts one request to a worker.

    Args:
      request: What the worker's `serve` takes, here [prediction, answer].
      timeout_sec: Wall-clock seconds until the worker is killed.

    Returns:
      ('ok', value), ('timeout', None) or ('error', reason).

    Raises:
      WorkerError: No worker could be started.
    """
    with self._slots:
      with self._lock:
        worker = self._idle.pop() if self._idle else None
      if worker is None:
        worker = _Worker(self._command)
      keep = False
      try:
        reply = worker.ask(request, timeout_sec)
        keep = isinstance(reply, list) and worker.tasks < MAX_TASKS
      finally:
        if keep:
          with self._lock:
            self._idle.append(worker)
        else:
          worker.kill()
    if reply is None:
      return "error", "the verifier process died"
    if reply == "timeout":
      return "timeout", None
    return tuple(reply)

  def map(
    self, requests: Sequence, timeout_sec: float, done: Callable | None = None
  ) -> list[tuple[str, object]]:
    """Puts many requests to the workers at once, answers in their order."""
    results: list = [None] * len(requests)
    todo = iter(range(len(requests)))
    lock, failures = threading.Lock(), []

    def run() -> None:
      while not failures:
        with lock:
          index = next(todo, None)
        if index is None:
          return
        try:
          results[index] = self.ask(requests[index], timeout_sec)
        except WorkerError as error:
          failures.append(error)

    threads = [
      threading.Thread(target=run, daemon=True)
      for _ in range(min(self.workers, len(requests)) - 1)
    ]
    for thread in threads:
      thread.start()
    run()
    for thread in threads:
      thread.join()
    if failures:
      raise failures[0]
    return results

  def close(self) -> None:
    """Ends the idle workers; the pool can be used again afterwards."""
    with self._lock:
      idle, self._idle = self._idle, []
    if self._pid == os.getpid():  # A forked child must leave them alone.
      for worker in idle:
        worker.kill()


def usable_cores() -> int:
  """Cores this process may use, which a container may have narrowed."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def _search_path() -> list[str]:
  """This interpreter's module path, with relative entries made absolute."""
  root = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
  )
  paths = [os.path.abspath(p) for p in sys.path if p]
  return [root] + [p for p in paths if p != root]


_shared: dict[int, Pool] = {}
_shared_lock = threading.Lock()


def _after_fork() -> None:
  global _shared, _shared_lock
  # The parent's workers and locks are not the child's to use.
  _shared, _shared_lock = {}, threading.Lock()


if hasattr(os, "register_at_fork"):
  os.register_at_fork(after_in_child=_after_fork)


def shared(workers: int = 0) -> Pool:
  """The pool of this process with so many workers, started once."""
  with _shared_lock:
    if workers not in _shared:
      _shared[workers] = Pool(workers)
    return _shared[workers]


@atexit.register
def close() -> None:
  """Ends the workers of all shared pools."""
  with _shared_lock:
    for pool in _shared.values():
      pool.close()
