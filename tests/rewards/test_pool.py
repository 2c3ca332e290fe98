"""The deadline, and what happens to a worker which misses it."""

import os
import subprocess
import sys
import threading
import time

import pytest

from dapo_jax import rewards
from dapo_jax.rewards import pool

HARD = ("\\boxed{\\frac{1}{\\sqrt{2}}}", "\\frac{\\sqrt{2}}{2}")
# A worker which hangs, dies or answers with the request, as it is told; it
# hangs on every [prediction, answer].
FAKE = """
import sys, time
from dapo_jax.rewards import pool
replies = sys.stdout.buffer
pool._send(replies, "ready")
while (request := pool._receive(sys.stdin.buffer)) is not None:
  if request == "hang" or isinstance(request, list):
    time.sleep(60)
  if request == "die":
    sys.exit(3)
  pool._send(replies, ["ok", request])
"""


@pytest.fixture
def fake():
  made = pool.Pool(2, (sys.executable, "-c", FAKE))
  yield made
  made.close()


def test_hanging_worker_is_replaced(fake):
  assert fake.ask("a", 5.0) == ("ok", "a")
  start = time.monotonic()
  assert fake.ask("hang", 0.3) == ("timeout", None)
  assert time.monotonic() - start < 5
  assert fake.ask("b", 5.0) == ("ok", "b")


def test_dying_worker_is_an_error(fake):
  status, reason = fake.ask("die", 5.0)
  assert status == "error" and "died" in reason
  assert fake.ask("c", 5.0) == ("ok", "c")


def test_hanging_task_does_not_delay_the_others(fake):
  requests = ["hang"] + [str(k) for k in range(20)]
  results = fake.map(requests, 0.5)
  assert results[0] == ("timeout", None)
  assert results[1:] == [("ok", str(k)) for k in range(20)]


def test_worker_is_recycled(fake, monkeypatch):
  monkeypatch.setattr(pool, "MAX_TASKS", 3)
  for k in range(4):
    assert fake.ask(str(k), 5.0) == ("ok", str(k))
  assert [w.tasks for w in fake._idle] == [1]


def test_worker_that_cannot_start():
  with pytest.raises(pool.WorkerError, match="cannot start"):
    pool.Pool(1, ("/no/such/python",)).ask("a", 1.0)
  with pytest.raises(pool.WorkerError, match="did not start"):
    pool.Pool(1, (sys.executable, "-c", "raise SystemExit(7)")).ask("a", 1.0)


def test_timeout_is_its_own_verdict(fake, monkeypatch):
  monkeypatch.setattr(pool, "shared", lambda workers: fake)
  verdicts = rewards.verify(
    ["\\boxed{\\sqrt{3}}", "Answer: 5", "I do not know. Sorry, really not."],
    ["\\sqrt{2}", "5", "5"],
    timeout_sec=0.3,
  )
  assert verdicts == [
    (False, "\\sqrt{3}", "timeout"),
    (True, "5", "ok"),
    (False, None, "no_answer"),
  ]


def test_error_is_its_own_verdict(monkeypatch):
  def broken(prediction, answer):
    raise KeyError("a bug")

  monkeypatch.setitem(
    rewards.RULES, "symbolic", rewards.RULES["symbolic"]._replace(equal=broken)
  )
  assert rewards.verify(["Answer: 5"], ["5"]) == [(False, "5", "error")]
  with pytest.raises(rewards.WorkerError, match="8 errors"):
    rewards.score(["Answer: 5"] * 8, ["5"] * 8)


def test_from_threads():
  results = {}

  def run(k):
    results[k] = rewards.verify(
      [HARD[0], "\\boxed{\\sqrt{3}}"], [HARD[1], HARD[1]]
    )

  threads = [threading.Thread(target=run, args=(k,)) for k in range(3)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(30)
  assert len(results) == 3
  for verdicts in results.values():
    assert [v.correct for v in verdicts] == [True, False]
    assert [v.status for v in verdicts] == ["ok", "ok"]


def test_without_a_main_guard(tmp_path):
  script = tmp_path / "scripts" / "script.py"
  script.parent.mkdir()
  script.write_text(
    'print("once")\nfrom dapo_jax import rewards\n'
    f"print(rewards.score([{HARD[0]!r}], [{HARD[1]!r}]).tolist())\n"
  )
  # A file in the current folder must not shadow a module of the worker's.
  (tmp_path / "mpmath.py").write_text('raise SystemExit("shadowed")')
  root = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
  )
  done = subprocess.run(
    [sys.executable, str(script)],
    capture_output=True,
    text=True,
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": root},
    check=True,
  )
  assert done.stdout.split() == ["once", "[True]"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_a_fork():
  code = f"""
import os
from dapo_jax import rewards
assert rewards.is_equivalent({HARD[0]!r}, {HARD[1]!r})
pid = os.fork()
assert rewards.is_equivalent({HARD[0]!r}, {HARD[1]!r})
if pid:
  assert os.waitpid(pid, 0)[1] == 0
"""
  subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_worker_count_is_checked():
  with pytest.raises(ValueError, match="workers"):
    pool.Pool(-1)
  assert pool.usable_cores() >= 1
