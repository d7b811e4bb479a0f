"""Real worker processes: flat over epochs, gone when they should be, and killed for real."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from ladle.batching import loader, parcel


class Pictures(Dataset):
    """Large enough for shared memory."""

    def __init__(self, size=40):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.full((3, 100, 100), index, dtype=torch.float32), index


def pids(batches):
    return [worker.pid for worker in batches._engine._loader._iterator._workers]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone(processes, seconds=5.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(map(alive, processes)):
            return True
        time.sleep(0.02)
    return False


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def resident(pid="self"):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


# --- they stay, and stay as they are ---


def test_twenty_epochs_have_the_same_workers_and_descriptors():
    """CASES A5-09, A5-13."""
    with loader(Pictures(20), batch_size=4, shuffle=True, workers=2, verbose=False) as batches:
        list(batches)
        workers, files = pids(batches), descriptors()
        memory = [resident(), *(resident(pid) for pid in workers)]
        for _ in range(20):
            assert sum(len(index) for _, index in batches) == 20
        assert pids(batches) == workers
        assert descriptors() <= files + 2
        after = [resident(), *(resident(pid) for pid in workers)]
    assert all(now - then < 8 << 20 for now, then in zip(after, memory, strict=True))
    assert gone(workers)


def test_the_next_epochs_first_batches_are_asked_for_before_this_one_ends():
    """What takes 50 ms a batch is there at once when the next epoch begins."""

    class Slow(Pictures):
        def __getitem__(self, index):
            time.sleep(0.05)
            return index

    with loader(Slow(8), batch_size=2, shuffle=True, workers=1, prefetch_factor=2, verbose=False) as batches:
        list(batches)
        time.sleep(0.3)
        began = time.perf_counter()
        next(iter(batches))
        assert time.perf_counter() - began < 0.05


def test_workers_that_need_not_persist_end_with_the_epoch():
    batches = loader(Pictures(8), batch_size=4, workers=1, persistent_workers=False, verbose=False)
    it = iter(batches)
    next(it)
    workers = pids(batches)
    list(it)
    assert gone(workers)
    assert len(list(batches)) == 2


def test_large_batches_come_whole_and_are_the_consumers_own():
    with loader(Pictures(), batch_size=8, workers=2, verbose=False) as batches:
        kept = list(batches)
    for number, (images, index) in enumerate(kept):
        assert index.tolist() == list(range(8 * number, 8 * number + 8))
        assert torch.equal(images[:, 2, 99, 99], index.float())
        images.zero_()


def test_without_room_in_shared_memory_they_come_through_the_pipe(monkeypatch):
    """CASES A5-07: a worker that wrote there would die of a bus error."""
    monkeypatch.setattr(parcel, "_room", lambda: 0)
    with loader(Pictures(), batch_size=8, workers=2, verbose=False) as batches:
        for images, index in batches:
            assert not images.is_shared()
            assert torch.equal(images[:, 2, 99, 99], index.float())
            images += 1  # writable


@pytest.mark.slow
@pytest.mark.parametrize("size", ["4m", "64m"])
def test_a_small_dev_shm_is_enough(tmp_path, size):
    """CASES A5-07, with a real one, where this user may mount it: batches of 9.6 MB, all of them kept."""
    script = tmp_path / "main.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch
            from ladle.batching import loader

            class Pictures:
                def __len__(self):
                    return 160

                def __getitem__(self, index):
                    return torch.full((3, 224, 224), float(index)), index

            with loader(Pictures(), batch_size=16, workers=2, verbose=False) as batches:
                for images, index in list(batches):
                    assert images[:, 2, 223, 223].tolist() == index.tolist()
            """
        )
    )
    own = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$0" "$@"']
    try:
        allowed = subprocess.run([*own, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("needs a mount of its own, which this user may not make")
    run = subprocess.run([*own, sys.executable, script], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.complex64, torch.uint8])
@pytest.mark.parametrize("room", [0, 1 << 40])
def test_every_dtype_and_shape_travels(monkeypatch, dtype, room):
    monkeypatch.setattr(parcel, "_room", lambda: room)
    for shape in [(), (0,), (3, 0, 2), (5,), (300, 400)]:
        tensor = torch.arange(1, 1 + int(torch.tensor(shape).prod())).to(dtype).reshape(shape)
        sent = parcel.Parcel(3, {"a": (tensor, "b"), "part": tensor[:1] if shape else tensor}).packed(1, fresh=True)
        opened = parcel.Parcel.opened(sent)
        assert opened.number == 3
        assert torch.equal(opened.content["a"][0], tensor)
        assert opened.content["a"][0].dtype == dtype
        assert opened.content["a"][1] == "b"


def test_a_part_of_a_tensor_takes_neither_the_rest_nor_its_memory_along():
    """torch moves a tensor's memory when it is shared: what still pointed there would be read after it is gone."""
    whole = torch.arange(100_000)
    flat = parcel._lifted(whole[:10], roomy=True, fresh=True)
    assert not np.shares_memory(flat.data, whole.numpy())
    large = parcel._lifted(whole[:50_000], roomy=True, fresh=True)
    assert large.untyped_storage().nbytes() == 400_000


def test_what_a_consumer_writes_into_its_batch_stays_out_of_the_dataset():
    class Cached(Dataset):
        def __init__(self):
            self.cache = [torch.zeros(100_000) for _ in range(2)]

        def __len__(self):
            return 2

        def __getitem__(self, index):
            return self.cache[index]

    for collate in (lambda samples: samples[0], None):
        with loader(Cached(), batch_size=1, workers=1, collate=collate, verbose=False) as batches:
            for _ in range(3):
                for batch in batches:
                    assert not batch.any()
                    batch += 1


# --- they go ---


@pytest.mark.parametrize("how", ["close", "with", "del"])
def test_a_loop_left_early_leaves_no_process_behind(how):
    files = descriptors()
    batches = loader(Pictures(), batch_size=4, workers=2, verbose=False)
    next(iter(batches))
    workers = pids(batches)
    assert all(map(alive, workers))
    if how == "close":
        batches.close()
    elif how == "with":
        with batches:
            next(iter(batches))
    del batches
    assert gone(workers)
    until = time.monotonic() + 5
    while descriptors() > files + 2 and time.monotonic() < until:  # their queues' threads close them, a moment later
        time.sleep(0.02)
    assert descriptors() <= files + 2


def test_a_worker_in_the_middle_of_a_long_sample_is_not_waited_for():
    class Endless(Pictures):
        def __getitem__(self, index):
            if index:
                time.sleep(60)
            return index

    batches = loader(Endless(), batch_size=1, workers=2, verbose=False)
    next(iter(batches))
    workers = pids(batches)
    began = time.monotonic()
    batches.close()
    assert time.monotonic() - began < 3
    assert gone(workers, 0.5)


def test_a_closed_loader_goes_on_with_new_workers():
    batches = loader(Pictures(), batch_size=4, shuffle=True, workers=1, verbose=False)
    it = iter(batches)
    first = next(it)[1].tolist()
    batches.close()
    rest = [index.tolist() for _, index in it]
    batches.close()
    with loader(Pictures(), batch_size=4, shuffle=True, workers=0, verbose=False) as plain:
        assert [first, *rest] == [index.tolist() for _, index in plain]


def test_a_killed_worker_is_an_error_that_says_so():
    """Also the other workers are gone, and the loader can go on where the consumer stood."""
    batches = loader(Pictures(400), batch_size=2, workers=2, verbose=False, training=True)
    it = iter(batches)
    next(it)
    workers = pids(batches)
    with pytest.raises(RuntimeError, match="killed by signal: Killed") as caught:
        os.kill(workers[0], signal.SIGKILL)
        for _ in it:
            pass
    assert "DataLoader worker" in str(caught.value)
    received = batches.position
    batches.close()
    assert gone(workers)
    assert next(iter(batches))[1].tolist() == [received, received + 1]
    batches.close()


PROGRAM = """
    import sys, time
    import torch
    from ladle.batching import loader

    class Slow:
        def __len__(self):
            return 1000

        made = 0

        def __getitem__(self, index):
            self.made += 1
            time.sleep({pause} if self.made > 4 else 0.01)  # the first batch comes soon
            return torch.full((3, 100, 100), float(index))

    if __name__ == "__main__":
        batches = loader(Slow(), batch_size=4, shuffle=True, workers=2, verbose=False)
        for number, batch in enumerate(batches):
            if number == 0:
                print(*[worker.pid for worker in batches._engine._loader._iterator._workers], flush=True)
            {body}
"""


def start(tmp_path, body, pause=0.01):
    script = tmp_path / "main.py"
    script.write_text(textwrap.dedent(PROGRAM).format(body=body, pause=pause))
    run = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    return run, [int(pid) for pid in run.stdout.readline().split()]


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.01, 3])
@pytest.mark.parametrize(("body", "code"), [("break", 0), ("raise ValueError('mine')", 1), ("sys.exit(3)", 3)])
def test_a_program_that_leaves_its_loop_ends_at_once(tmp_path, body, code, pause):
    """CASES A5-10: also while its workers are in the middle of a long sample."""
    run, workers = start(tmp_path, body, pause)
    began = time.monotonic()
    _, errors = run.communicate(timeout=30)
    assert time.monotonic() - began < 5
    assert run.returncode == code
    assert errors.count("Traceback") == (code == 1)
    assert len(workers) == 2
    assert gone(workers, 1)


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.01, 3])
def test_ctrl_c_is_one_traceback_and_no_process(tmp_path, pause):
    run, workers = start(tmp_path, "time.sleep(0.05)", pause)
    time.sleep(0.3)
    began = time.monotonic()
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, errors = run.communicate(timeout=30)
    assert time.monotonic() - began < 5
    assert run.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert gone(workers, 1)


@pytest.mark.slow
def test_a_killed_program_takes_its_workers_along(tmp_path):
    run, workers = start(tmp_path, "time.sleep(0.05)")
    run.kill()
    run.communicate()
    assert gone(workers, 12)  # torch's workers look for their parent every 5 s


@pytest.mark.slow
def test_two_thousand_kept_batches_under_256_descriptors(tmp_path):
    """CASES A5-08."""
    script = tmp_path / "main.py"
    script.write_text(
        textwrap.dedent(
            """
            import resource
            import torch
            from ladle.batching import loader

            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

            class Pictures:
                def __len__(self):
                    return 4000

                def __getitem__(self, index):
                    return torch.full((10_000,), float(index)), index

            with loader(Pictures(), batch_size=2, workers=2, verbose=False) as batches:
                kept = list(batches)
            assert len(kept) == 2000
            for number, (images, index) in enumerate(kept):
                assert index.tolist() == [2 * number, 2 * number + 1]
                assert images[:, -1].tolist() == index.tolist()
            """
        )
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr[-2000:]


def test_the_workers_of_a_loader_in_memory_are_none():
    batches = loader(TensorDataset(torch.arange(4)), verbose=False)
    assert len(list(batches)) == 4
    assert batches.num_workers == 0
