"""Shared memory regions: size, sealing, mappings, descriptors."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys

import pytest

from tpc_server.shm import Region, UnsupportedMachineError, require_tso


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_region_is_zeroed_and_rounded_up_to_pages():
    region = Region.create(5000, "test")
    assert region.size == 8192
    assert bytes(region.buf) == bytes(8192)
    assert len(region.words) == 1024
    region.close()


def test_two_mappings_are_the_same_memory():
    region = Region.create(4096)
    one, two = region.mapping(), region.mapping()
    one.words[3] = 0x0102030405060708
    assert two.halves[6] == 0x05060708
    assert two.halves[7] == 0x01020304
    two.buf[100:103] = b"abc"
    assert one.buf[99:104] == b"\0abc\0"
    assert region.buf[100:103] == b"abc"
    region.close()


def test_a_slice_takes_any_contiguous_buffer_and_refuses_a_wrong_size():
    mapping = Region.create(4096).mapping()
    mapping.buf[8:24] = memoryview(bytes(range(16))).cast("Q")
    assert mapping.buf[8:24] == bytes(range(16))
    with pytest.raises(IndexError):
        mapping.buf[0:8] = b"seven.."


def test_mappings_outlive_the_region():
    region = Region.create(4096)
    mapping = region.mapping()
    region.close()
    mapping.words[0] = 7
    assert mapping.words[0] == 7
    mapping.close()
    with pytest.raises(ValueError, match="closed"):
        region.mapping()
    with pytest.raises(ValueError, match="closed"):
        _ = region.words
    region.close()  # twice is harmless


def test_no_descriptor_is_left():
    gc.collect()
    before = open_descriptors()
    for _ in range(20):
        region = Region.create(4096)
        mapping = region.mapping()
        attached = Region.attach(os.dup(region.fd), region.size)
        attached.close()
        region.close()
        mapping.close()
    assert open_descriptors() == before


def test_the_size_is_sealed():
    region = Region.create(8192)
    with pytest.raises(PermissionError):
        os.ftruncate(region.fd, 4096)
    with pytest.raises(PermissionError):
        os.ftruncate(region.fd, 1 << 20)
    region.close()


def test_a_file_that_is_too_small_is_refused():
    fd = os.memfd_create("short")
    os.ftruncate(fd, 4096)
    with pytest.raises(ValueError, match="holds 4096 bytes, not the 8192"):
        Region.attach(fd, 8192)
    os.close(fd)
    with pytest.raises(ValueError, match="positive"):
        Region.create(0)


def test_descriptors_are_not_inherited_unless_passed():
    region = Region.create(4096)
    region.buf[0:5] = b"hello"
    assert not os.get_inheritable(region.fd)
    child = (
        "import sys\n"
        "from tpc_server.shm import Region\n"
        "region = Region.attach(int(sys.argv[1]), 4096)\n"
        "assert region.buf[0:5] == b'hello'\n"
        "region.words[100] = 1 << 40\n"
    )
    subprocess.run(
        [sys.executable, "-c", child, str(region.fd)],
        pass_fds=(region.fd,),
        check=True,
        timeout=60,
    )
    assert region.words[100] == 1 << 40
    region.close()


@pytest.mark.parametrize("machine", ["x86_64", "AMD64", None])
def test_x86_64_is_accepted(machine):
    require_tso(machine)


@pytest.mark.parametrize("machine", ["aarch64", "arm64", "i686", "ppc64le", "riscv64", ""])
def test_other_machines_are_refused_by_name(machine):
    with pytest.raises(UnsupportedMachineError, match="x86-64") as refused:
        require_tso(machine)
    assert repr(machine) in str(refused.value)


def test_no_region_is_made_on_another_machine(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    before = open_descriptors()
    with pytest.raises(UnsupportedMachineError):
        Region.create(4096)
    assert open_descriptors() == before
