"""Feeds that deliver to JAX: arrays on a device, global arrays over a mesh, and over the devices of several processes."""

import os
import re
import socket
import subprocess
import sys
import textwrap

import pytest

HEAD = """
import json, sys
import numpy as np
import ladle
from ladle.errors import ConfigError, LadleError, TokenError

def feed(**options):
    split = ladle.from_ids(np.arange(1003, dtype=np.uint16))
    return ladle.Feed(split, **{"batch_size": 8, "block_size": 10, "seed": 5} | options)

def refused(kind, make):
    try:
        make()
    except kind as error:
        return str(error)
    raise AssertionError("nothing was refused")
"""
MESH = """
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
devices = np.array(jax.devices())
assert devices.size == 4
"""


def run(code, *arguments, devices=4):
    environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "error::UserWarning", "-c", HEAD + textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def ran(code, *arguments, **options):
    with run(code, *arguments, **options) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def test_without_jax_it_says_what_to_install():
    out = ran(
        """
        sys.modules["jax"] = None
        print(refused(ImportError, lambda: feed(framework="jax")))
        """
    )
    assert out == "a feed with framework='jax' needs the package 'jax', which is not installed; pip install 'ladle[jax]'\n"


@pytest.fixture
def _jax():
    pytest.importorskip("jax", reason="JAX is not installed: pip install 'ladle[jax]'")


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.usefixtures("_jax")
def test_arrays_are_the_feeds_batches_as_int32():
    ran(
        MESH
        + """
for prefetch in (0, 2):
    for device in (None, jax.devices()[2]):
        with feed(framework="jax", prefetch=prefetch, device=device) as mine, feed(framework="numpy") as wanted:
            for batch, expected in zip(mine.epoch(), wanted.epoch(), strict=True):
                x, y = batch
                assert isinstance(x, jax.Array) and x.dtype == y.dtype == np.int32
                assert x.devices() == {device or jax.devices()[0]}
                assert np.array_equal(x, expected.x) and np.array_equal(y, expected.y)
                assert (batch.state, batch.num_targets, batch.digest) == (expected.state, expected.num_targets, expected.digest)
            again = feed(framework="jax")
            again.load_state_dict(json.loads(json.dumps(batch.state)))
            assert next(again).digest == next(wanted).digest
"""
    )


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.usefixtures("_jax")
def test_a_global_array_over_a_mesh():
    ran(
        MESH
        + """
flat, square = Mesh(devices, ("data",)), Mesh(devices.reshape(2, 2), ("data", "model"))
for mesh, spec, shard in ((flat, P("data"), (2, 10)), (square, P("data"), (4, 10)), (square, P("data", "model"), (4, 5)), (flat, P(), (8, 10))):
    sharding = NamedSharding(mesh, spec)
    with feed(framework="jax", device=sharding) as mine, feed(framework="numpy") as wanted:
        for batch, expected in zip(mine.epoch(), wanted.epoch(), strict=True):
            for found, right in zip(batch, expected, strict=True):
                assert found.shape == (8, 10) and found.sharding == sharding
                assert {part.data.shape for part in found.addressable_shards} == {shard}
                assert all(np.array_equal(part.data, right[part.index]) for part in found.addressable_shards)
            assert batch.digest == expected.digest
        total = jax.jit(lambda x: x.sum())(mine.at(0).x)
        assert int(total) == int(wanted.at(0).x.sum())
print("done")
"""
    )


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.usefixtures("_jax")
def test_where_documents_lie_comes_as_x_does():
    """positions and segments over the same mesh, lengths on one device; int32, JAX's own width."""
    ran(
        MESH
        + """
def packed(**options):
    split = ladle.from_ids(np.arange(1003, dtype=np.uint16), document_ends=[*range(7, 1003, 7), 1003])
    return ladle.Feed(split, **{"batch_size": 8, "block_size": 10, "seed": 5} | options)

mesh = Mesh(devices, ("data",))
for how in ({"pack": "best_fit"}, {"mask_documents": True}):
    for device in (None, devices[2], NamedSharding(mesh, P("data")), NamedSharding(mesh, P())):
        with packed(framework="jax", device=device, **how) as mine, packed(framework="numpy", **how) as wanted:
            for batch, expected in zip(mine.epoch(), wanted.epoch(), strict=True):
                for name in ("positions", "segments", "cu_seqlens"):
                    found = getattr(batch, name)
                    assert isinstance(found, jax.Array) and found.dtype == np.int32
                    assert np.array_equal(found, getattr(expected, name))
                    assert name == "cu_seqlens" or found.sharding == batch.x.sharding
                assert len(batch.cu_seqlens.devices()) == 1
                assert batch.max_seqlen == expected.max_seqlen
                assert np.array_equal(batch.y, expected.y) and batch.digest == expected.digest
"""
    )


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.usefixtures("_jax")
def test_bad_input_is_refused_before_the_first_batch():
    out = ran(
        MESH
        + """
over = NamedSharding(Mesh(devices, ("data",)), P("data"))
print(refused(ConfigError, lambda: feed(framework="jax", device="cpu")))
print(refused(ConfigError, lambda: feed(framework="jax", device=over, batch_size=6)))
print(refused(ConfigError, lambda: feed(framework="jax", device=over, rank=1, world_size=2)))
wide = ladle.from_ids(np.full(50, 2**31, dtype=np.uint32))
for prefetch in (0, 2):
    with ladle.Feed(wide, batch_size=2, block_size=4, framework="jax", prefetch=prefetch) as mine:
        print(refused(TokenError, lambda: next(mine)))
"""
    )
    lines = out.splitlines()
    assert lines[0] == "device: expected a jax.Device or a jax.sharding.Sharding with framework='jax', found 'cpu'"
    assert lines[1].startswith("device: expected a sharding that divides a batch of (6, 10), found NamedSharding(")
    assert lines[2] == (
        "rank, world_size: expected this process to make rows 4 to 7 of the global batch's 8, found a mesh whose devices here "
        "hold rows 0 to 7; order the mesh by process, or pass rank= and world_size="
    )
    assert lines[3:] == ["memory: id: expected below 2**31, as JAX's int32 holds, found 2147483648"] * 2


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.usefixtures("_jax")
def test_two_processes_place_their_own_rows_of_one_global_array():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = """
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    rank = int(sys.argv[1])
    jax.distributed.initialize(f"127.0.0.1:{sys.argv[2]}", num_processes=2, process_id=rank)
    over = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
    wanted = feed(framework="numpy")
    with feed(framework="jax", device=over) as mine:  # rank and world size are JAX's
        assert (mine.shape.rank, mine.shape.world_size) == (rank, 2)
        for _ in range(5):
            batch, right = next(mine), next(wanted)
            assert batch.x.shape == (8, 10) and len(batch.x.addressable_shards) == 2
            assert all(np.array_equal(part.data, right.x[part.index]) for part in batch.x.addressable_shards)
            assert batch.rows == range(right.rows.start + 4 * rank, right.rows.start + 4 * rank + 4)
            assert batch.state == right.state
            total = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(over.mesh, P()))(batch.x)
            assert int(total) == int(right.x.sum())
    print("digests", batch.digest, right.digest)
    back = np.array(jax.devices())[::-1]
    print(refused(ConfigError, lambda: feed(framework="jax", device=NamedSharding(Mesh(back, ("data",)), P("data")))))
    """
    processes = [run(code, rank, port, devices=2) for rank in range(2)]
    digests = []
    try:
        for rank, process in enumerate(processes):
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            mine, whole = (int(word) for word in re.search(r"digests (\d+) (\d+)", out).groups())
            digests.append(mine)
            assert f"expected this process to make rows {4 * rank} to {4 * rank + 3} of the global batch's 8" in out
        assert sum(digests) % 2**64 == whole
    finally:
        for process in processes:
            process.kill()
            process.wait()
