"""Products of packed weights on a CPU are exact for every kind, and a row's result has the same bits in every batch."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from spectr.kernels.cpu.kinds import KINDS, interleaved, separated
from spectr.kernels.cpu.library import Library, library
from spectr.kernels.cpu.matrix import Matrix
from spectr.kernels.cpu.processor import VARIABLE
from spectr.kernels.cpu.threads import threads

SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}  # where blocks keep half-precision numbers


def raw(name: str, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random rows of a kind as bytes, and as floats by another implementation."""
    generator, kind = np.random.default_rng(0), KINDS[name]
    weights = generator.standard_normal((rows, columns)).astype(np.float32)
    if name == "INT8":
        scale = (np.abs(weights).max(1, keepdims=True) / 127).astype(np.float32)
        codes = np.round(weights / scale).astype(np.int8)
        return np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], 1), codes * scale.astype(np.float64)
    number = GGMLQuantizationType[name]
    if name not in SCALES:
        data = quantize(weights, number)
    else:
        data = generator.integers(0, 256, (rows, columns // kind.block, kind.bytes), dtype=np.uint8)
        for at in SCALES[name]:
            half = generator.random((rows, columns // kind.block, 1)).astype(np.float16)
            data[:, :, at : at + 2] = half.view(np.uint8)
        data = data.reshape(rows, -1)
    numbers = dequantize(data, number).astype(np.float64).reshape(rows, columns)
    return np.ascontiguousarray(data).view(np.uint8).reshape(rows, -1), numbers


def check(name: str, rows: int, columns: int) -> None:
    """Compare products and rows with float64, and 1 to 17 inputs with each input alone."""
    data, numbers = raw(name, rows, columns)
    matrix = Matrix.packed(name, data, columns)
    inputs = torch.randn(17, columns, generator=torch.Generator().manual_seed(0))
    right = inputs.double().numpy() @ numbers.T
    alone = torch.cat([matrix.multiply(one[None]) for one in inputs])
    assert np.abs(alone.numpy() - right).max() < 2e-6 * np.abs(right).max()
    for count in range(1, 18):
        np.testing.assert_array_equal(matrix.multiply(inputs[:count]).numpy(), alone[:count].numpy())
    found = matrix.float_rows(torch.arange(rows)).double().numpy()
    assert np.abs(found - numbers).max() < 1e-6 * np.abs(numbers).max()
    np.testing.assert_array_equal(matrix.raw(), data)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("shape", [(96, 512), (7, 256)], ids=["tiles", "part of a tile"])
def test_every_kind_is_exact_and_the_same_in_any_company(name: str, shape: tuple[int, int]) -> None:
    check(name, *shape)


def test_selected_rows_and_a_bias_give_the_same_products() -> None:
    """A matrix of selected rows gives the same bits as the whole one; a bias is added."""
    data, _ = raw("Q4_1", 100, 64)
    bias = torch.randn(100)
    matrix, chosen = Matrix.packed("Q4_1", data, 64, bias), torch.tensor([99, 3, 50, 51])
    inputs = torch.randn(5, 64)
    whole = matrix.multiply(inputs)
    assert torch.equal(matrix.select_rows(chosen).multiply(inputs), whole[:, chosen])
    plain = Matrix.packed("Q4_1", data, 64).multiply(inputs)
    assert torch.equal(whole, plain + bias)


@pytest.mark.parametrize("lanes", [8, 16])
def test_tiles_hold_the_bytes_of_their_rows(lanes: int) -> None:
    for name, kind in KINDS.items():
        data, _ = raw(name, 37, 256)
        tiles = interleaved(kind, data, lanes)
        assert tiles.size == -(-37 // lanes) * lanes * data.shape[1]
        np.testing.assert_array_equal(separated(kind, tiles, lanes)[:37], data)


def test_threads_change_no_bit() -> None:
    data, _ = raw("Q8_0", 640, 256)
    matrix, inputs, before = Matrix.packed("Q8_0", data, 256), torch.randn(3, 256), torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            found.append([matrix.multiply(inputs) for _ in range(50)])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, found[0][0]) for several in found for one in several)
    threads(4).close()
    assert torch.equal(matrix.multiply(inputs), found[0][0])


_OTHER = """
import torch
from tests.kernels.test_cpu import KINDS, check
torch.set_num_threads(1)
for name in {names}:
    check(name, 40, 256)
"""


def elsewhere(cpu: str, names: list[str]) -> None:
    """Run the same checks in a process that compiles for another processor."""
    environment = {**os.environ, VARIABLE: cpu, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    code = _OTHER.format(names=names)
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_a_processor_without_extensions() -> None:
    """Kernels for the baseline of x86-64, which has no fused multiply-add and short vectors, pass the same checks."""
    elsewhere("generic", ["Q4_1", "Q8_0"])


@pytest.mark.slow
def test_every_kind_without_extensions() -> None:
    elsewhere("generic", list(KINDS))


def test_compiled_kernels_are_cached_and_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process compiles nothing; a damaged file is compiled again."""
    monkeypatch.setenv("SPECTR_HOME", str(tmp_path))
    said: list[str] = []
    first = Library(library().processor)
    first.load({"INT8"}, said.append)
    assert said == ["compiling kernels for this processor (once): INT8, decoder"]
    Library(library().processor).load({"INT8"}, said.append)
    assert len(said) == 1
    file = next(tmp_path.rglob("INT8.o"))
    file.write_bytes(file.read_bytes()[:-7])
    again = Library(library().processor)
    again.load({"INT8"}, said.append)
    assert said[1:] == ["compiling kernels for this processor (once): INT8"]
    assert again.address("multiply_INT8")
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]
