"""SIGTERM and Ctrl-C, as the loop hears them."""

from collections.abc import Callable
import signal
import threading

from tqdm import tqdm


class Preempted(Exception):
  """SIGTERM or Ctrl-C: the state is saved, the same command goes on."""


def listen() -> tuple[threading.Event, Callable[[], None]]:
  """An event that SIGTERM or Ctrl-C sets, and what ends the listening.

  The loop looks at the event where it can save. A second signal ends the
  process at once.
  """
  event = threading.Event()
  if threading.current_thread() is not threading.main_thread():
    return event, lambda: None  # signals reach the main thread only
  before = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}

  def restore():
    for number, handler in before.items():
      signal.signal(number, handler)

  def handle(*_):
    event.set()
    restore()
    tqdm.write("stopping as soon as the state can be saved; again: at once")

  for number in before:
    signal.signal(number, handle)
  return event, restore
