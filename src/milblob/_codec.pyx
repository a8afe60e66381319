# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: embedsignature=True, freethreading_compatible=True, auto_pickle=False
"""The compiled core: owns buffers, drops the GIL for work that grows with the data, turns C statuses into exceptions.

C knows bytes and counts (include/milblob); Python owns names and files. Offsets and sizes are in bytes unless a name
has another unit. Only `Buffer` holds a reference to a buffer, until the last array over it is gone.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AsString
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from cpython.pythread cimport (
    NOWAIT_LOCK, PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_get_thread_ident,
    PyThread_release_lock, PyThread_type_lock)
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

cimport milblob._kernels as C  # so that cythonize sees when it changes
cimport milblob._mlir as M

from os import environ as _environ, urandom as _urandom
from time import sleep as _sleep
from types import MappingProxyType as _MappingProxyType

from .errors import FormatError, UnsupportedError, program_path

RECORD_FIELDS = ("offset", "data_offset", "nbytes", "count", "padding_nbits", "blob_code", "mil_code")
SCAN_ALL, SCAN_PLAIN, SCAN_KNOWN = 1, 2, 4
ATTRIBUTE, INPUT, BLOCK_ATTRIBUTE, FUNCTION_ATTRIBUTE, PROGRAM_ATTRIBUTE = 1, 2, 3, 4, 5
IMMEDIATE, BLOB, NAME = 1, 2, 3
WRITE_ALL, WRITE_CUT, WRITE_NONE = C.MB_WRITE_ALL, C.MB_WRITE_CUT, C.MB_WRITE_NONE
GRAPH_OUTPUT, GRAPH_INPUT, GRAPH_PARAMETER = C.MB_GRAPH_OUTPUT, C.MB_GRAPH_INPUT, C.MB_GRAPH_PARAMETER
PACK_RAW, PACK_BOOL = C.MB_PACK_RAW, C.MB_PACK_BOOL
PACK_I16, PACK_U16, PACK_I32, PACK_I64 = C.MB_PACK_I16, C.MB_PACK_U16, C.MB_PACK_I32, C.MB_PACK_I64

CAST_F32_F16, CAST_F32_BF16, CAST_F16_F32 = C.MB_CAST_F32_F16, C.MB_CAST_F32_BF16, C.MB_CAST_F16_F32
FROM_U8, FROM_I8, FROM_F16, FROM_F32 = C.MB_FROM_U8, C.MB_FROM_I8, C.MB_FROM_F16, C.MB_FROM_F32
TO_F32, TO_F16, TO_F16_STEPS = C.MB_TO_F32, C.MB_TO_F16, C.MB_TO_F16_STEPS
CAST_BF16_F32, CAST_F16_BF16, CAST_BF16_F16 = C.MB_CAST_BF16_F32, C.MB_CAST_F16_BF16, C.MB_CAST_BF16_F16
WIDE_F32, WIDE_F64, WIDE_I32 = C.MB_WIDE_F32, C.MB_WIDE_F64, C.MB_WIDE_I32
WIDE_U32, WIDE_I64, WIDE_U64 = C.MB_WIDE_U32, C.MB_WIDE_I64, C.MB_WIDE_U64
HASH_STRETCH_NBYTES = C.MB_BLAKE3_STRETCH


def dtype_table():
    """Return the dtype table of dtype.h: (name, MIL text, MIL code, blob code or 0, bits, TensorValue field) per row."""
    return tuple((C.mb_dtypes[i].name.decode(), C.mb_dtypes[i].text.decode(), C.mb_dtypes[i].mil_code,
                  C.mb_dtypes[i].blob_code, C.mb_dtypes[i].nbits, C.mb_dtypes[i].field)
                 for i in range(C.MB_DTYPE_COUNT))


@cython.no_gc  # in a cycle, the collector could release the exporter (a memoryview) while it is still held
cdef class Buffer:
    """A held read-only view of any C-contiguous buffer, and an exporter of it.

    NumPy arrays over a Buffer keep it alive, and it keeps the exporter (an mmap, bytes, ...) locked: a mapping cannot be
    unmapped under live arrays. The view is released when the Buffer and all arrays over it are gone.

    Args:
        source: any object with the buffer protocol; strided ones raise BufferError.
        name: what messages call these bytes, usually the file's path; None for memory.
    """
    cdef Py_buffer view
    cdef const uint8_t *data
    cdef bint held
    cdef readonly uint64_t nbytes
    cdef readonly object name
    cdef object origin  # represents the buffer in rows that were found in it, without a reference to it

    def __cinit__(self, source, name=None):
        try:
            PyObject_GetBuffer(source, &self.view, PyBUF_SIMPLE)
        except ValueError as error:  # NumPy raises this for a strided array
            raise BufferError(str(error)) from None
        self.held = True
        self.data = <const uint8_t *>self.view.buf
        self.nbytes = <uint64_t>self.view.len
        self.name = name

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.view.buf, self.view.len, 1, flags)

    def __len__(self):
        return self.view.len


cdef _span_check(Buffer buffer, uint64_t offset, uint64_t nbytes):
    if offset > buffer.nbytes or nbytes > buffer.nbytes - offset:
        message = f"bytes [{offset}, {offset + nbytes}): expected to lie inside the buffer, got an end at {buffer.nbytes}"
        raise FormatError(message, offset=offset, file=buffer.name)


# The only table from a status to a message. MB_VERSION and a range error of one element have their own classes or values.
_MESSAGES = {
    <int>C.MB_TRUNCATED: "{what}: expected {expected} more bytes, got {got}",
    <int>C.MB_SENTINEL: "{what}: expected 0x{expected:08x}, got 0x{got:08x}",
    <int>C.MB_DTYPE: "{what}: expected one that is known, got {got}",
    <int>C.MB_BOUNDS: "{what}: expected {expected} bytes, got a file of {got}",
    <int>C.MB_OVERLAP: "{what}: expected to begin at byte {expected} or later, got {got}",
    <int>C.MB_OVERFLOW: "{what}: expected a number below 2^64, got {expected} and {got}",
    <int>C.MB_PADDING: "{what}: expected 0 to 7 that leave whole {expected}-bit elements, got {got}",
    <int>C.MB_VARINT: "{what}: expected at most 10 bytes and 64 bits, got more",
    <int>C.MB_TAG: "{what}: expected wire type {expected}, got {got}",
    <int>C.MB_NUMBER: "{what}, got {got}",
    <int>C.MB_LENGTH: "{what}: expected {expected} bytes, got {got} before the end of the message",
    <int>C.MB_DEPTH: "{what}: expected at most {expected} levels of nesting, got more",
    <int>C.MB_RANK: "{what}: expected {expected} dimensions, got {got}",
    <int>C.MB_TYPE: "{what}: expected a tensor type, got none",
    <int>C.MB_EDGE: "{what}: expected the payload of a field or whole fields, got {got} bytes that are neither",
    <int>C.MB_CHANGED: "{what}: expected {expected} as counted before, got another number: they changed while they were read",
    <int>C.MB_UTF8: "{what}: expected UTF-8, got other bytes",
    <int>C.MB_RANGE: "{what}: expected a value that fits, got another at element {expected}",
    <int>C.MB_SYNTAX: "MIL text: expected {what}, got {found}",
}


cdef _error(C.mb_error *e, name, str where=""):
    if e.status == C.MB_VERSION:
        older = " (the older Espresso weight format)" if e.got == 1 else ""
        return UnsupportedError(f"storage version: expected 2, got {e.got}{older}", offset=e.offset, file=name, where=where)
    if e.status == C.MB_TEXTLESS:
        message = f"MIL text: expected a Program that text can hold, got {e.detail.decode()}"
        return UnsupportedError(message, offset=e.offset, file=name, where=where)
    template = _MESSAGES.get(<int>e.status, "{what}: expected {expected}, got {got}")
    found = "the end" if e.got > 255 else repr(chr(e.got))
    what = e.detail.decode() if e.detail != NULL else "data"
    message = template.format(what=what, expected=e.expected, got=e.got, found=found)
    return FormatError(message, offset=e.offset, file=name, where=where)


# One module; its functions are grouped by subject in .pxi files. Their shared code is above.
include "codec/turns.pxi"
include "codec/blobs.pxi"
include "codec/casts.pxi"
include "codec/differences.pxi"
include "codec/mlir.pxi"
include "codec/params.pxi"
include "codec/statistics.pxi"
include "codec/palettes.pxi"
include "codec/decode.pxi"
include "codec/quantize.pxi"
include "codec/prune.pxi"
include "codec/vectors.pxi"
include "codec/values.pxi"
include "codec/programs.pxi"
include "codec/names.pxi"
include "codec/constants.pxi"
include "codec/scan.pxi"
include "codec/graph.pxi"
include "codec/operations.pxi"
include "codec/chains.pxi"
include "codec/text.pxi"
