"""Opening trace files: compressed or not, with or without a byte-order mark, and telling what is in them."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal, cast

from ....hwmodels.errors import nearest
from ...fields import WorkloadError

Layout = Literal["table", "records", "parquet"]


def layout_of(path: str) -> Layout:
    """Tell a table of text from JSON records from Parquet by the first bytes, whatever the file is called.

    Raises
    ------
    WorkloadError : no such file, or an empty one
    """
    with open_binary(path) as file:
        head = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head:
        raise WorkloadError(f"{path}: empty file, no requests to simulate")
    if head.startswith(b"PAR1"):
        return "parquet"
    return "records" if head[:1] in b"{[" else "table"


@contextmanager
def open_binary(path: str) -> Generator[IO[bytes]]:
    """Open a file for reading bytes, through gzip where it is compressed.

    Raises
    ------
    WorkloadError : the file is not there, cannot be read, or its compressed data is damaged
    """
    if "\0" in path:
        raise WorkloadError(f"trace file {path!r}: no file has a NUL in its name")
    try:
        with Path(path).open("rb") as raw:
            compressed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if compressed else Path(path).open("rb") as file:
            yield cast("IO[bytes]", cast("object", file))
    except FileNotFoundError:
        raise WorkloadError(_not_found(path)) from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise WorkloadError(f"{path}: damaged or truncated gzip data ({error})") from None
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from None


def open_text(file: IO[bytes]) -> IO[str]:
    """Read an open file as UTF-8 text, without its byte-order mark if it has one; line ends are kept."""
    return io.TextIOWrapper(file, encoding="utf-8-sig", newline="")


def refuse_bad_utf8(path: str) -> None:
    """Name the first line that is not UTF-8.

    Raises
    ------
    WorkloadError : there is one
    """
    with open_binary(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                where = f"{path}: line {number}"
                raise WorkloadError(f"{where}: not UTF-8 text (byte {error.start + 1})") from None


def _not_found(path: str) -> str:
    folder = Path(path).parent
    names = [item.name for item in folder.iterdir()] if folder.is_dir() else []
    close = nearest(Path(path).name, names)
    hint = f"; nearest: {str(folder / close)!r}" if close else "" if names else f"; no folder {str(folder)!r}"
    return f"trace file {path!r} not found" + hint
