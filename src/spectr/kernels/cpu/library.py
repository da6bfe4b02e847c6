"""Compiles kernels once for a processor, caches them on disk, and loads them as functions."""

import ctypes
import hashlib
import importlib.metadata
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from spectr.folders import home
from spectr.kernels.cpu.decoder import emit_decoder
from spectr.kernels.cpu.kinds import KINDS
from spectr.kernels.cpu.noise import emit_candidates, emit_noise
from spectr.kernels.cpu.pool import emit_run, emit_wake, emit_worker
from spectr.kernels.cpu.processor import Processor, host
from spectr.kernels.cpu.products import emit_product, emit_rows

__all__ = ["Library", "library"]

_DIGEST = hashlib.sha256().digest_size
_SPEED = 2  # level of LLVM's optimisation


def _emit(name: str, processor: Processor) -> str:
    """Return the LLVM assembly of a module: the products of one kind, or everything else."""
    module = ir.Module(name)
    module.triple = llvm.get_process_triple()
    if name in KINDS:
        emit_product(module, KINDS[name], processor)
        emit_rows(module, KINDS[name], processor)
    else:
        emit_decoder(module, processor)
        emit_noise(module, processor)
        emit_candidates(module, processor)
        emit_run(module, processor)
        emit_wake(module, processor)
        emit_worker(module, processor)
    return str(module)


def _machine(processor: Processor) -> Any:
    target = llvm.Target.from_triple(llvm.get_process_triple())
    # "large", because code and constants may be more than 2 GiB apart in a large process.
    return target.create_target_machine(
        cpu=processor.name, features=processor.features, opt=3, reloc="static", codemodel="large"
    )


def _compiled(text: str, processor: Processor) -> bytes:
    """Return the object file of a module."""
    machine, module = _machine(processor), llvm.parse_assembly(text)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=_SPEED))
    builder.getModulePassManager().run(module, builder)
    made: bytes = machine.emit_object(module)
    return made


def _key(processor: Processor) -> str:
    """Return a hash of everything that affects the code: the processor, the compiler, and the sources in this
    folder."""
    digest = hashlib.sha256()
    version = importlib.metadata.version("llvmlite")
    digest.update(f"{processor.name} {processor.features} {version} {llvm.llvm_version_info}".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:24]


class Library:
    """The kernels of one processor."""

    def __init__(self, processor: Processor) -> None:
        self.processor, self.folder = processor, home() / "compiled" / "cpu" / _key(processor)
        empty = llvm.parse_assembly(f'target triple = "{llvm.get_process_triple()}"')
        self._engine = llvm.create_mcjit_compiler(empty, _machine(processor))
        self._loaded: set[str] = set()

    def load(self, names: set[str], progress: Callable[[str], None] = lambda _: None) -> None:
        """Load the kernels of these kinds and the decoder; compile those that are not on disk."""
        wanted = sorted((names | {"decoder"}) - self._loaded)
        found = {name: self._stored(name) for name in wanted}
        missing = [name for name in wanted if found[name] is None]
        if missing:
            progress(f"compiling kernels for this processor (once): {', '.join(missing)}")
        for name in wanted:
            made = found[name] or self._store(name)
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(made))
        self._engine.finalize_object()
        self._loaded |= set(wanted)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.o"

    def _stored(self, name: str) -> bytes | None:
        """Return a cached object file, None if there is none or its checksum, which precedes it, does not match."""
        try:
            data = self._path(name).read_bytes()
        except OSError:
            return None
        digest, made = data[:_DIGEST], data[_DIGEST:]
        return made if hashlib.sha256(made).digest() == digest else None

    def _store(self, name: str) -> bytes:
        """Compile a module and cache it. If the folder cannot be written to, the next process compiles it again."""
        made = _compiled(_emit(name, self.processor), self.processor)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor, aside = tempfile.mkstemp(dir=self.folder, prefix=f".{name}-")
            with os.fdopen(descriptor, "wb") as file:
                file.write(hashlib.sha256(made).digest() + made)
            Path(aside).replace(self._path(name))
        except OSError:
            pass
        return made

    def address(self, name: str) -> int:
        """Return the address of a function."""
        return int(self._engine.get_function_address(name))

    def function(self, name: str, *kinds: Any) -> Any:
        """Return a function for Python with arguments of these ctypes; it runs without holding the interpreter lock."""
        return ctypes.CFUNCTYPE(None, *kinds)(self.address(name))


@cache
def library() -> Library:
    """Return the kernels for the processor of this machine."""
    return Library(host())
