"""The thread: how it begins, what it hands over, and that nothing is left of it, whatever happens."""

import contextlib
import gc
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import ladle
from ladle.errors import FormatError
from ladle.feed.prefetch import Prefetcher


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ladle-prefetch"]


def open_files(folder) -> list[str]:
    """What this process holds open or mapped of a folder."""
    held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]
    with open("/proc/self/maps") as maps:
        held += maps.read().split()
    return [name for name in held if name.startswith(str(folder))]


def soon(condition, seconds=1.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


@pytest.fixture
def folder(tmp_path):
    np.arange(60_000, dtype=np.uint16).tofile(tmp_path / "train.bin")
    return tmp_path


def feed_of(folder, **options) -> ladle.Feed:
    chosen = {"batch_size": 4, "block_size": 16, "framework": "numpy", "prefetch": 3} | options
    return ladle.Feed(ladle.open(folder)["train"], **chosen)


# --- the prefetcher alone ---


def up_to(end):
    return lambda ticket: ticket + 1 if ticket + 1 < end else None


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_it_makes_what_follows_and_no_more(depth):
    made = []
    ahead = Prefetcher(lambda ticket: made.append(ticket) or ticket * 10, up_to(50), depth)
    for ticket in range(50):
        assert ahead.take(ticket) == ticket * 10
        assert soon(lambda: made == list(range(min(ticket + depth, 49) + 1)))  # noqa: B023  called at once
    ahead.close()


def test_a_jump_drops_what_was_under_way():
    begun, go = threading.Event(), threading.Event()
    made = []

    def make(ticket):
        made.append(ticket)
        if ticket == 1:
            begun.set()
            go.wait(10)
        return ticket

    ahead = Prefetcher(make, up_to(100), 5)
    assert ahead.take(0) == 0
    begun.wait(10)
    threading.Timer(0.05, go.set).start()
    assert ahead.take(50) == 50
    assert made[:3] == [0, 1, 50]  # 2 to 5 were asked for and never begun
    assert ahead.take(51) == 51
    ahead.close()


@pytest.mark.parametrize(
    "error",
    [ValueError("a bad row"), StopIteration(3), KeyError("k"), SystemExit(4), MemoryError(), FormatError("f", 1, "x", 2, 3)],
)
def test_an_error_arrives_as_it_was_raised_and_where_it_belongs(error):
    def make(ticket):
        if ticket == 3:
            raise error
        return ticket

    ahead = Prefetcher(make, up_to(9), 4)
    assert [ahead.take(ticket) for ticket in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(type(error)) as caught:
            ahead.take(3)
        assert caught.value is error
    assert ahead.take(4) == 4
    ahead.close()


def test_nothing_is_kept_of_what_was_taken_or_raised():
    class Large:
        alive = 0

        def __init__(self):
            Large.alive += 1

        def __del__(self):
            Large.alive -= 1

    def make(ticket):
        large = Large()
        if ticket == 2:
            raise ValueError(large.alive)
        return large

    ahead = Prefetcher(make, lambda ticket: None, 1)
    gc.disable()  # references alone must do it
    try:
        first = ahead.take(1)
        assert Large.alive == 1
        del first
        assert soon(lambda: Large.alive == 0)
        with contextlib.suppress(ValueError):
            ahead.take(2)
        assert soon(lambda: Large.alive == 0)
    finally:
        gc.enable()
    ahead.close()


# --- a feed's thread ---


def test_no_thread_before_the_first_batch_and_none_after_the_with(folder):
    with feed_of(folder) as feed:
        feed[3]
        assert not threads()
        for batch in feed:
            assert len(threads()) == 1
            assert threads()[0].daemon
            if batch.position > 500:
                break
    assert not threads()


@pytest.mark.parametrize("prefetch", [1, 2, 8])
def test_batches_are_the_same_at_any_depth(folder, prefetch):
    with feed_of(folder, prefetch=prefetch, epochs=1) as feed, feed_of(folder, prefetch=0, epochs=1) as plain:
        assert [batch.digest for batch in feed] == [batch.digest for batch in plain]


def test_an_error_in_the_loop_leaves_no_thread(folder):
    with pytest.raises(ZeroDivisionError), feed_of(folder) as feed:
        for _ in feed:
            1 / 0
    assert not threads()


@pytest.mark.parametrize("kind", ["ours", "nanogpt"])
def test_a_feed_that_is_dropped_takes_its_thread_and_files_along(folder, kind):
    """By references alone: cycles would wait for a collection that may come much later."""
    (folder / "text.txt").write_text("some text. " * 1000)
    ladle.prepare(folder / "text.txt", folder / "ours", tokenizer="bytes", val_fraction=0).close()
    gc.collect()
    gc.disable()
    try:
        corpus = ladle.open(folder / "ours" if kind == "ours" else folder)
        feed = ladle.Feed(corpus["train"], batch_size=4, block_size=16, framework="numpy")
        next(feed)
        assert len(threads()) == 1
        assert open_files(folder)
        del feed, corpus
        assert soon(lambda: not threads())
        assert soon(lambda: not open_files(folder))
    finally:
        gc.enable()


def test_an_abandoned_iteration_is_collected(folder):
    def use():
        for batch in feed_of(folder).epoch():
            return batch
        return None

    batch = use()
    gc.collect()
    assert soon(lambda: not threads())
    assert batch.x.shape == (4, 16)


def test_closing_while_the_thread_is_at_work(folder):
    for _ in range(30):
        feed = feed_of(folder, batch_size=200, block_size=256)
        next(feed)
        feed.close()
        assert not threads()


def test_a_damaged_block_is_raised_where_it_is_taken_and_the_feed_can_go_on(tmp_path):
    (tmp_path / "text.txt").write_text("some text, and more of it. " * 2000)
    ladle.prepare(tmp_path / "text.txt", tmp_path / "out", tokenizer="bytes", val_fraction=0).close()
    path = tmp_path / "out" / "train-00000.bin"
    content = bytearray(path.read_bytes())
    content[5 * 4096] ^= 1
    path.write_bytes(content)
    with (
        ladle.open(tmp_path / "out") as corpus,
        ladle.Feed(corpus["train"], batch_size=4, block_size=64, order="sequential", framework="numpy", prefetch=3) as feed,
    ):
        good = 0
        with pytest.raises(FormatError) as caught:
            for _ in feed:
                good += 1
        assert str(caught.value).startswith(f"{path} @ byte {5 * 4096}: CRC-32 of block 5: expected ")
        assert good == 5 * 2048 // 256 - 1  # batch 39's last target is the damaged block's first token
        at = feed.position
        with pytest.raises(FormatError):
            next(feed)
        assert feed.position == at
        feed.load_state_dict(feed.state_dict() | {"position": 6 * 2048 + 256})
        assert next(feed).position == 6 * 2048 + 256
    assert not threads()


@pytest.mark.parametrize("before", [0, 2])
def test_an_interrupt_between_any_two_instructions_loses_no_order(folder, before):
    """KeyboardInterrupt raised before every single bytecode of `next(feed)`: what comes afterwards is right."""
    inside = (os.path.dirname(ladle.__file__) + os.sep + "feed", *([threading.__file__] if before else []))
    with feed_of(folder, prefetch=2) as plain:
        right = [plain[number].digest for number in range(12)]
    interrupted = 0
    for moment in itertools.count():
        feed = feed_of(folder, prefetch=2)
        assert [next(feed).digest for _ in range(before)] == right[:before]
        left = moment

        def trace(frame, event, _):
            nonlocal left
            if not frame.f_code.co_filename.startswith(inside):
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                if left == 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
                left -= 1
            return trace

        sys.settrace(trace)
        try:
            next(feed)
        except KeyboardInterrupt:
            interrupted += 1
        else:
            break
        finally:
            sys.settrace(None)
        at = feed.position // 64
        assert at in (before, before + 1)
        assert [next(feed).digest for _ in range(4)] == right[at : at + 4]
        feed.close()
        assert not threads()
    feed.close()
    assert interrupted > 100, interrupted
    assert soon(lambda: not threads())


def test_a_copy_begins_in_the_thread_and_arrives_where_it_is_used(folder, monkeypatch):
    """As a device needs it: the stream that must wait for the copy is the consumer's, not the prefetch thread's."""
    begun, arrived = [], []

    def send(block):
        begun.append(threading.current_thread().name)

        def arrival():
            arrived.append(threading.current_thread().name)
            return block[0], block[1]

        return arrival

    monkeypatch.setattr("ladle.feed.feed.delivery", lambda *_: (send, lambda: None))
    with feed_of(folder, framework="torch", prefetch=3) as feed:
        for _ in range(5):
            next(feed)
        assert arrived == ["MainThread"] * 5
        assert len(begun) >= 5
        assert set(begun) == {"ladle-prefetch"}
        feed[0]
        assert arrived == ["MainThread"] * 6


def test_a_hundred_epochs_leave_one_thread(folder):
    with feed_of(folder, block_size=256, batch_size=40) as feed:
        for _ in range(100):
            assert sum(batch.num_targets for batch in feed.epoch()) == 59_999
            assert len(threads()) == 1


# --- whole processes ---


def run(script, folder, **options):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


BEGIN = """
import itertools, os, sys, threading, time, numpy, ladle
feed = ladle.Feed(ladle.open(sys.argv[1])["train"], batch_size=64, block_size=128, framework={framework!r}, prefetch=3)
"""


@pytest.mark.parametrize(
    ("framework", "how"),
    [("torch", ""), ("numpy", ""), ("numpy", "sys.exit(0)"), ("numpy", "raise SystemExit"), ("numpy", "del feed")],
)
def test_the_interpreter_exits_quietly_in_mid_iteration(folder, framework, how):
    script = BEGIN.format(framework=framework) + f"for _ in range(5): next(feed)\nprint(time.time(), flush=True)\n{how}\n"
    done = run(script, folder)
    end = time.time()
    assert (done.returncode, done.stderr) == (0, "")
    assert end - float(done.stdout) < 5


def test_an_error_in_the_script_is_the_only_traceback(folder):
    done = run(BEGIN.format(framework="numpy") + "for batch in feed: batch.nothing\n", folder)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.rstrip().endswith("AttributeError: 'Batch' object has no attribute 'nothing'")


@pytest.mark.parametrize("pause", ["", "time.sleep(0.01)"])
def test_ctrl_c_ends_it_at_once(folder, pause):
    script = BEGIN.format(framework="numpy") + f"print('ready', flush=True)\nfor batch in feed:\n    {pause or 'pass'}\n"
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    begun = time.monotonic()
    _, error = process.communicate(timeout=20)
    assert time.monotonic() - begun < 5
    assert process.returncode in (-signal.SIGINT, 130)
    assert error.count("Traceback") == 1
    assert error.rstrip().endswith("KeyboardInterrupt")
    assert "ignored" not in error


def test_after_a_caught_ctrl_c_the_feed_goes_on(folder):
    script = BEGIN.format(framework="numpy") + textwrap.dedent("""
        import signal
        right = [feed[i].digest for i in range(300)]
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        caught = 0
        while caught < 100:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.001 + caught * 1e-5)
                for batch in feed:
                    if batch.position // 8192 >= 299:
                        feed.load_state_dict(feed.state_dict() | {"position": 0})
                    assert batch.position // 8192 > 299 or batch.digest == right[batch.position // 8192]
            except KeyboardInterrupt:
                caught += 1
        feed.load_state_dict(feed.state_dict() | {"position": 5 * 8192})
        assert next(feed).digest == right[5]
        feed.close()
        print(caught, [t.name for t in threading.enumerate()])
    """)
    done = run(script, folder)
    assert done.stderr == ""
    assert done.stdout == "100 ['MainThread']\n"


def test_a_forked_child_goes_on_by_itself(folder):
    """As torch's DataLoader forks its workers: while the parent's thread is at work."""
    script = BEGIN.format(framework="numpy") + textwrap.dedent("""
        import warnings
        warnings.simplefilter("ignore")  # Python 3.12 warns of any fork beside a thread
        right = [feed[i].digest for i in range(40)]
        for turn in range(10):
            next(feed)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    at = feed.position // 8192
                    assert [next(feed).digest for _ in range(5)] == right[at:at + 5]
                    feed.close()
                    assert threading.active_count() == 1
                    status = 0
                finally:
                    os._exit(status)
            assert next(feed).digest == right[2 * turn + 1]
            assert os.waitpid(child, 0)[1] == 0
        print("fine")
    """)
    done = run(script, folder)
    assert (done.stdout, done.stderr, done.returncode) == ("fine\n", "", 0)


def test_a_forked_child_that_uses_nothing_exits_too(folder):
    script = BEGIN.format(framework="numpy") + textwrap.dedent("""
        import warnings
        warnings.simplefilter("ignore")
        next(feed)
        child = os.fork()
        if child == 0:
            sys.exit(7)  # through atexit: the parent's thread is not here to be joined
        begun = time.monotonic()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert time.monotonic() - begun < 2
        next(feed)
        print("fine")
    """)
    done = run(script, folder)
    assert (done.stdout, done.stderr, done.returncode) == ("fine\n", "", 0)


@pytest.mark.parametrize("framework", ["torch", "numpy"])
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.slow
def test_memory_is_flat_over_ten_thousand_batches(folder, framework, prefetch):
    script = textwrap.dedent(f"""
        import itertools, sys, ladle
        def anonymous():
            with open("/proc/self/status") as status:
                return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
        feed = ladle.Feed(
            ladle.open(sys.argv[1])["train"], batch_size=64, block_size=256, framework={framework!r}, prefetch={prefetch}
        )
        def walked(batches):
            for batch in itertools.islice(feed, batches): batch.state
            return anonymous()
        walked(3000)
        before = max(walked(200) for _ in range(10))
        walked(8000)
        print(min(walked(200) for _ in range(10)) - before)
    """)
    done = run(script, folder)
    assert done.stderr == ""
    assert int(done.stdout) < 256  # KiB; one batch is 256, and 30 bytes a batch would be as much
