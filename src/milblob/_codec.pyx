# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: embedsignature=True, freethreading_compatible=True, auto_pickle=False
"""The compiled core: owns buffers, drops the GIL around work that grows with the data, turns a C status into an exception.

C knows bytes and counts (include/milblob), Python owns names and files. Offsets and sizes are in bytes unless a name says
otherwise. Only `Buffer` keeps a reference to a buffer, until the last array made from it is gone.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from milblob cimport _kernels as C

from .errors import FormatError, UnsupportedError, program_path

RECORD_FIELDS = ("offset", "data_offset", "nbytes", "count", "padding_nbits", "blob_code", "mil_code")
SCAN_ALL, SCAN_USES, SCAN_PLAIN = 1, 2, 4
ATTRIBUTE, INPUT, BLOCK_ATTRIBUTE, FUNCTION_ATTRIBUTE, PROGRAM_ATTRIBUTE, RETURN = 1, 2, 3, 4, 5, 6
IMMEDIATE, BLOB, NAME = 1, 2, 3
PACK_RAW, PACK_I16, PACK_U16, PACK_I32, PACK_I64 = C.MB_PACK_RAW, C.MB_PACK_I16, C.MB_PACK_U16, C.MB_PACK_I32, C.MB_PACK_I64


def dtype_table():
    """Return the dtype table of dtype.h: (name, MIL text, MIL code, blob code or 0, bits, TensorValue field) per row."""
    return tuple((C.mb_dtypes[i].name.decode(), C.mb_dtypes[i].text.decode(), C.mb_dtypes[i].mil_code,
                  C.mb_dtypes[i].blob_code, C.mb_dtypes[i].nbits, C.mb_dtypes[i].field)
                 for i in range(C.MB_DTYPE_COUNT))


@cython.no_gc  # a cycle through it would let the collector break the exporter (a memoryview) while it is still held
cdef class Buffer:
    """A held read-only view of any C-contiguous buffer, and an exporter of it.

    NumPy arrays made over a Buffer keep it alive, and it keeps the exporter (an mmap, bytes, ...) locked: a mapping with
    live arrays cannot be unmapped under them. The view is released when the Buffer and all arrays over it are gone.

    Args:
        source: any object with the buffer protocol; strided ones are refused with BufferError.
        name: what messages call these bytes, usually the file's path; None for memory.
    """
    cdef Py_buffer view
    cdef const uint8_t *data
    cdef bint held
    cdef readonly uint64_t nbytes
    cdef readonly object name

    def __cinit__(self, source, name=None):
        try:
            PyObject_GetBuffer(source, &self.view, PyBUF_SIMPLE)
        except ValueError as error:  # NumPy's word for a strided array
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
        words = f"bytes [{offset}, {offset + nbytes}): expected to lie inside the buffer, got an end at {buffer.nbytes}"
        raise FormatError(words, offset=offset, file=buffer.name)


# The one table from a status to words. MB_VERSION and a range error of one element have classes or values of their own.
_WORDS = {
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
    <int>C.MB_UTF8: "{what}: expected UTF-8, got other bytes",
    <int>C.MB_RANGE: "{what}: expected a value that fits, got another at element {expected}",
    <int>C.MB_SYNTAX: "MIL text: expected {what}, got {found}",
}


cdef _error(C.mb_error *e, name, str where=""):
    if e.status == C.MB_VERSION:
        older = " (the older Espresso weight format)" if e.got == 1 else ""
        return UnsupportedError(f"storage version: expected 2, got {e.got}{older}", offset=e.offset, file=name, where=where)
    words = _WORDS.get(<int>e.status, "{what}: expected {expected}, got {got}")
    found = "the end" if e.got > 255 else repr(chr(e.got))
    what = e.detail.decode() if e.detail != NULL else "data"
    message = words.format(what=what, expected=e.expected, got=e.got, found=found)
    return FormatError(message, offset=e.offset, file=name, where=where)


def blob_count(Buffer buffer not None):
    """Return the record count of a storage header, checked against the size of the file.

    Raises:
        FormatError: the buffer is shorter than a header, or than so many records.
        UnsupportedError: the storage version is not 2.
    """
    cdef uint32_t count = 0
    cdef C.mb_error e
    if C.mb_blob_header(buffer.data, buffer.nbytes, &count, &e):
        raise _error(&e, buffer.name)
    return count


def blob_walk(Buffer buffer not None, records):
    """Fill one index row per record, in file order.

    Args:
        buffer: a whole storage file.
        records: writable buffer of blob_count(buffer) rows of 48 bytes: see RECORD_FIELDS.

    Returns:
        (number of good rows, exception that the next one deserves or None).
    """
    cdef Py_buffer out
    cdef uint32_t done = 0
    cdef C.mb_error e
    cdef C.mb_status status
    PyObject_GetBuffer(records, &out, PyBUF_WRITABLE)
    try:
        with nogil:
            status = C.mb_blob_walk(buffer.data, buffer.nbytes, <uint32_t>(out.len // sizeof(C.mb_blob_record)),
                                    <C.mb_blob_record *>out.buf, &done, &e)
    finally:
        PyBuffer_Release(&out)
    return done, _error(&e, buffer.name, f"record {done}") if status else None


def blob_record(Buffer buffer not None, uint64_t offset):
    """Check the record at `offset`: (data_offset, nbytes, count, padding_nbits, blob code)."""
    cdef C.mb_blob_record r
    cdef C.mb_error e
    cdef uint64_t done
    memset(&r, 0, sizeof(r))
    if C.mb_blob_records_at(buffer.data, buffer.nbytes, NULL, &offset, 1, &r, &done, &e):
        raise _error(&e, buffer.name)
    return r.data_offset, r.nbytes, r.count, r.padding_nbits, r.blob_code


def blob_records_at(Buffer buffer not None, offsets, records, bytes metadata=None):
    """Fill one index row per metadata offset, in the order given.

    Args:
        buffer: a whole storage file.
        offsets: buffer of uint64, any values.
        records: writable buffer of as many rows of 48 bytes.
        metadata: the 64 bytes at each offset, if they were read already; then the file itself is not touched.

    Returns:
        (number of good rows, exception that the next one deserves or None).
    """
    cdef Py_buffer src, out
    cdef const uint8_t *given = NULL
    cdef uint64_t done = 0, count
    cdef C.mb_error e
    cdef C.mb_status status
    PyObject_GetBuffer(offsets, &src, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(records, &out, PyBUF_WRITABLE)
        try:
            count = min(<uint64_t>src.len // 8, <uint64_t>out.len // sizeof(C.mb_blob_record))
            if metadata is not None:
                count = min(count, <uint64_t>len(metadata) // 64)
                given = <const uint8_t *>PyBytes_AS_STRING(metadata)
            with nogil:
                status = C.mb_blob_records_at(buffer.data, buffer.nbytes, given, <const uint64_t *>src.buf, count,
                                              <C.mb_blob_record *>out.buf, &done, &e)
        finally:
            PyBuffer_Release(&out)
    finally:
        PyBuffer_Release(&src)
    return done, _error(&e, buffer.name) if status else None


def unpack_bits(Buffer buffer not None, uint64_t offset, uint64_t count, unsigned int nbits, out):
    """Unpack `count` elements of `nbits` (1, 2, 3, 4 or 6) at `offset` into `out`, one zero-extended byte each."""
    cdef Py_buffer dst
    _span_check(buffer, offset, C.mb_packed_nbytes(count, nbits))
    PyObject_GetBuffer(out, &dst, PyBUF_WRITABLE)
    try:
        if <uint64_t>dst.len != count:
            raise ValueError(f"out: expected {count} bytes, got {dst.len}")
        with nogil:
            C.mb_unpack_bits(<uint8_t *>dst.buf, buffer.data + offset, count, nbits)
    finally:
        PyBuffer_Release(&dst)


def tensor_pack(int field, array, int kind, int lo=0, int hi=0):
    """Serialize a TensorValue from a C-contiguous array.

    Args:
        field: number of the TensorValue field.
        array: contiguous buffer, aligned to an element; little-endian where `kind` is PACK_RAW.
        kind: PACK_RAW to copy the bytes; PACK_I16, PACK_U16, PACK_I32, PACK_I64 to encode elements of that type as
            varints; 1, 2, 3, 4 or 6 to pack one-byte elements to so many bits, checked against lo..hi (int8 if lo < 0).

    Returns:
        bytes: the TensorValue message. An empty array gives the field with no values, as coremltools writes it.

    Raises:
        OverflowError: an element is outside lo..hi.
    """
    cdef Py_buffer src
    cdef C.mb_error e
    cdef C.mb_status status = C.MB_OK
    cdef uint64_t count, payload = 0, inner, head
    cdef uint8_t *at
    cdef uint8_t header[32]
    cdef bytes result
    PyObject_GetBuffer(array, &src, PyBUF_SIMPLE)
    try:
        count = <uint64_t>src.len // C.mb_pack_itemsize(kind)
        payload = C.mb_pack_nbytes(kind, src.buf, count)
        inner = 1 + C.mb_varint_length(payload) + payload if payload else 0
        header[0] = <uint8_t>(field << 3 | 2)
        head = 1 + C.mb_varint_write(header + 1, inner)
        if payload:
            header[head] = 0x0a
            head += 1 + C.mb_varint_write(header + head + 1, payload)
        result = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(head + payload))
        at = <uint8_t *>PyBytes_AS_STRING(result)
        C.mb_advise_huge(at, head + payload)
        memcpy(at, header, head)
        if payload:
            with nogil:
                status = C.mb_pack(kind, at + head, payload, src.buf, count, lo, hi, &e)
    finally:
        PyBuffer_Release(&src)
    if status:
        raise OverflowError(f"element {e.expected}: expected {lo} to {hi}, got {<int64_t>e.got}")
    return result


def tensor_pack_strings(list texts):
    """Serialize a TensorValue of strings from a list of bytes objects (UTF-8)."""
    cdef uint8_t prefix[16]
    parts = []
    for text in texts:
        parts.append(b"\x0a" + prefix[:C.mb_varint_write(prefix, len(text))])
        parts.append(text)
    body = b"".join(parts)
    return b"\x22" + prefix[:C.mb_varint_write(prefix, len(body))] + body


def tensor_locate(Buffer buffer not None, uint64_t offset, uint64_t nbytes):
    """Find the payload of a serialized TensorValue.

    Returns:
        (field, start, payload offset, payload nbytes, chunk count, string count): see tensor.h. With a chunk count of 1
        the payload lies in one piece at payload offset; with more, tensor_gather puts it together.
    """
    cdef C.mb_tensor t
    cdef C.mb_error e
    cdef C.mb_status status
    _span_check(buffer, offset, nbytes)
    with nogil:
        status = C.mb_tensor_locate(buffer.data, buffer.data + offset, nbytes, &t, &e)
    if status:
        raise _error(&e, buffer.name)
    return t.field, t.start, t.offset, t.nbytes, t.chunk_count, t.count


def tensor_gather(Buffer buffer not None, uint64_t end, int field, uint64_t start, uint64_t nbytes):
    """Put the chunks of a located TensorValue together: bytes, one packed run of `nbytes`."""
    cdef C.mb_tensor t
    cdef C.mb_error e
    cdef bytes result = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>nbytes)
    cdef uint8_t *dst = <uint8_t *>PyBytes_AS_STRING(result)
    _span_check(buffer, start, end - start)
    memset(&t, 0, sizeof(t))
    t.field, t.start, t.nbytes = field, start, nbytes
    if C.mb_tensor_gather(buffer.data, buffer.data + end, &t, dst, NULL, &e):
        raise _error(&e, buffer.name)
    return result


def tensor_strings(Buffer buffer not None, uint64_t end, uint64_t start, uint64_t count):
    """Decode the strings of a located TensorValue: a list of str."""
    cdef C.mb_tensor t
    cdef C.mb_error e
    cdef uint64_t i
    cdef list result = []
    cdef uint64_t *ranges
    _span_check(buffer, start, end - start)
    memset(&t, 0, sizeof(t))
    t.field, t.start, t.count = C.MB_FIELD_STRINGS, start, count
    ranges = <uint64_t *>malloc(max(count, <uint64_t>1) * 16)
    if ranges == NULL:
        raise MemoryError
    try:
        if C.mb_tensor_gather(buffer.data, buffer.data + end, &t, NULL, ranges, &e):
            raise _error(&e, buffer.name)
        for i in range(count):
            result.append(_text(buffer, ranges[2 * i], ranges[2 * i + 1]))
    finally:
        free(ranges)
    return result


def varint_count(Buffer buffer not None, uint64_t offset, uint64_t nbytes):
    """Count the varints in [offset, offset + nbytes)."""
    cdef uint64_t count
    _span_check(buffer, offset, nbytes)
    with nogil:
        count = C.mb_varint_count(buffer.data + offset, nbytes)
    return count


def varint_decode(Buffer buffer not None, uint64_t offset, uint64_t nbytes, out, unsigned int itemsize, int64_t lo, int64_t hi,
                  bint is_bool=False):
    """Decode varints to elements of `itemsize` bytes (1, 2, 4, 8), each within lo..hi.

    Args:
        out: writable, aligned buffer; its size says how many elements there must be.

    Raises:
        FormatError: a value out of range (its index is named), a malformed varint, or too many or few of them.
    """
    cdef Py_buffer dst
    cdef C.mb_error e
    cdef C.mb_status status
    cdef uint64_t count
    cdef const uint8_t *src = buffer.data + offset
    _span_check(buffer, offset, nbytes)
    PyObject_GetBuffer(out, &dst, PyBUF_WRITABLE)
    count = <uint64_t>dst.len // itemsize
    try:
        with nogil:
            status = C.mb_varint_decode(dst.buf, itemsize, is_bool, src, nbytes, count, lo, hi, &e)
    finally:
        PyBuffer_Release(&dst)
    if not status:
        return
    e.offset += offset
    if status == C.MB_RANGE:
        raise FormatError(f"element {e.expected}: expected {lo} to {hi}, got {<int64_t>e.got}", offset=e.offset, file=buffer.name)
    raise _error(&e, buffer.name)


cdef _text(Buffer buffer, uint64_t offset, uint64_t nbytes):
    try:
        return PyUnicode_DecodeUTF8(<const char *>buffer.data + offset, <Py_ssize_t>nbytes, NULL)
    except UnicodeDecodeError as error:
        raise FormatError(f"text: expected UTF-8, got {error.reason}", offset=offset + error.start, file=buffer.name) from None


cdef class Op:
    """An output of an operation that owns constants: see mb_op. `shape` is None and `mil_code` 0 where it is no tensor."""
    cdef readonly str name, type
    cdef readonly uint32_t block, index, output_count, mil_code
    cdef readonly object shape
    cdef readonly tuple message


cdef class Constant:
    """One tensor constant of a Program, or one use of a name: where it is, nothing of what it holds.

    value, payload: (offset, nbytes) of the Value message and of its TensorValue (IMMEDIATE), in the scanned buffer.
    text: the blob's fileName (BLOB) or the name that is read (NAME).    key: parameter or attribute.
    shape: declared dimensions, None where open.    steps: (index, 0 item | 1 key | 2 value) per level of nesting.
    """
    cdef readonly tuple value, payload, steps, binding
    cdef readonly str key, text
    cdef readonly Op op
    cdef readonly object shape
    cdef readonly uint64_t blob_offset, count
    cdef readonly uint32_t mil_code, owner, storage
    cdef readonly int64_t block, function


cdef class Scan:
    """The result of scanning a Program: see scan_program.

    functions: [(name, opset, (offset, nbytes))]; blocks: [(name, function, parent or -1, number, index)]; ops: [Op];
    constants: [Constant]; version: Program.version.
    """
    cdef readonly list functions, blocks, ops, constants
    cdef readonly uint64_t version


cdef _shape(const uint64_t *numbers, uint32_t rank):
    cdef uint32_t i
    return tuple([numbers[i] if numbers[i] != C.MB_UNKNOWN else None for i in range(rank)])


cdef str _path(Buffer buffer, C.mb_scan *s):
    """Where a scan stopped. Names may be broken themselves, so they are decoded with replacement."""
    def text(uint64_t offset, uint64_t nbytes):
        return (<const char *>buffer.data)[offset:offset + nbytes].decode("utf-8", "replace")
    cdef uint32_t block = s.block
    cdef C.mb_block *row
    cdef C.mb_span name
    if s.function == C.MB_NONE or s.function >= s.function_capacity:
        return program_path("", None)
    function = text(s.functions[s.function].name.offset, s.functions[s.function].name.nbytes)
    nesting = []
    while block != C.MB_NONE and block < s.block_capacity:
        row = &s.blocks[block]
        if row.parent == C.MB_NONE:
            break
        nesting.append((row.index, text(row.name.offset, row.name.nbytes), row.number))
        block = row.parent
    spec = None
    if block != C.MB_NONE and block < s.block_capacity:
        spec = text(s.blocks[block].name.offset, s.blocks[block].name.nbytes)
    name = s.current.name
    if s.in_op and s.output.offset:  # the scan reads an operation's name only when it needs it
        try:
            for number, wire, _, offset, nbytes in wire_fields(buffer, s.output.offset, s.output.nbytes):
                if number == 1 and wire == 2:
                    name.offset, name.nbytes = offset, nbytes
        except FormatError:
            pass
    op = (s.current.index, text(name.offset, name.nbytes)) if s.in_op else None
    key = text(s.owner.key.offset, s.owner.key.nbytes) if s.in_op else ""
    return program_path(function, spec, nesting[::-1], op, key)


def scan_program(Buffer buffer not None, uint64_t offset, uint64_t nbytes, uint32_t flags=0):
    """Find every tensor constant of the serialized Program at [offset, offset + nbytes).

    Args:
        flags: SCAN_ALL for every tensor constant, else the weights (see program.h); SCAN_USES for uses of names instead;
            SCAN_PLAIN for bytes that protobuf itself wrote.

    Returns:
        Scan, or None if the Program must be rewritten in plain form first (split messages, repeated map keys).

    Raises:
        FormatError: with the byte offset and the path inside the Program.
    """
    cdef C.mb_scan s
    cdef C.mb_error e
    cdef C.mb_status status
    cdef C.mb_span program
    cdef void *memory
    cdef uint64_t functions = 16, blocks = 64, ops = 1024, entries = 1024, numbers = 4096
    _span_check(buffer, offset, nbytes)
    program.offset, program.nbytes = offset, nbytes
    while True:
        memory = malloc(functions * sizeof(C.mb_function) + blocks * sizeof(C.mb_block) + ops * sizeof(C.mb_op) +
                        entries * sizeof(C.mb_entry) + numbers * 8)
        if memory == NULL:
            raise MemoryError
        try:
            memset(&s, 0, sizeof(s))
            s.base, s.flags, s.error = buffer.data, flags, &e
            s.function_capacity, s.block_capacity, s.op_capacity = functions, blocks, ops
            s.entry_capacity, s.number_capacity = entries, numbers
            s.functions = <C.mb_function *>memory
            s.blocks = <C.mb_block *>(s.functions + functions)
            s.ops = <C.mb_op *>(s.blocks + blocks)
            s.entries = <C.mb_entry *>(s.ops + ops)
            s.numbers = <uint64_t *>(s.entries + entries)
            with nogil:
                status = C.mb_program_scan(&s, program)
            if status == C.MB_OK:
                return _scan_rows(buffer, &s)
            if status == C.MB_SPLIT:
                return None
            # An error in a block that has no row yet: once more with room for it, so that the message can say where.
            if status != C.MB_FULL and (s.function_count | s.block_count >= 1 << 20 or
                                        (s.function_count <= functions and s.block_count <= blocks)):
                raise _error(&e, buffer.name, _path(buffer, &s))
            functions, blocks, ops = max(functions, s.function_count), max(blocks, s.block_count), max(ops, s.op_count)
            entries, numbers = max(entries, s.entry_count), max(numbers, s.number_count)
        finally:
            free(memory)


cdef Scan _scan_rows(Buffer buffer, C.mb_scan *s):
    cdef Scan scan = Scan.__new__(Scan)
    cdef Op op
    cdef Constant row
    cdef C.mb_op *o
    cdef C.mb_entry *t
    cdef uint64_t i
    cdef uint32_t k
    cdef uint64_t last_offset = 0, last_nbytes = 0, key_offset = 0, key_nbytes = 0
    cdef str last = "", key = ""
    cdef list names = []
    scan.version = s.version
    scan.functions = [(_text(buffer, s.functions[i].name.offset, s.functions[i].name.nbytes),
                       _text(buffer, s.functions[i].opset.offset, s.functions[i].opset.nbytes),
                       (s.functions[i].message.offset, s.functions[i].message.nbytes)) for i in range(s.function_count)]
    for i in range(s.block_count):  # the blocks of one operation share its name
        if i == 0 or s.blocks[i].name.offset != s.blocks[i - 1].name.offset:
            last = _text(buffer, s.blocks[i].name.offset, s.blocks[i].name.nbytes)
        names.append(last)
    last = ""
    scan.blocks = [(names[i], s.blocks[i].function,
                    -1 if s.blocks[i].parent == C.MB_NONE else <int64_t>s.blocks[i].parent, s.blocks[i].number,
                    s.blocks[i].index) for i in range(s.block_count)]
    scan.ops = ops = []
    for i in range(s.op_count):
        o = &s.ops[i]
        op = Op.__new__(Op)
        op.name = _text(buffer, o.name.offset, o.name.nbytes)
        op.type = _text(buffer, o.type.offset, o.type.nbytes)
        op.block, op.index, op.output_count, op.mil_code = o.block, o.index, o.output_count, o.mil_code
        op.shape = _shape(s.numbers + o.dims, o.rank) if o.mil_code else None
        op.message = (o.message.offset, o.message.nbytes)
        ops.append(op)
    scan.constants = constants = []
    for i in range(s.entry_count):
        t = &s.entries[i]
        row = Constant.__new__(Constant)
        row.value = (t.value.offset, t.value.nbytes)
        row.payload = (t.payload.offset, t.payload.nbytes)
        if t.key.offset != key_offset or t.key.nbytes != key_nbytes:  # the elements of one list share theirs
            key_offset, key_nbytes = t.key.offset, t.key.nbytes
            key = _text(buffer, key_offset, key_nbytes)
        row.key = key
        if t.storage != IMMEDIATE:
            # Nearly every weight names the same file: one str for a run of equal names.
            if t.payload.nbytes != last_nbytes or memcmp(buffer.data + t.payload.offset, buffer.data + last_offset, last_nbytes):
                last_offset, last_nbytes = t.payload.offset, t.payload.nbytes
                last = _text(buffer, last_offset, last_nbytes)
            row.text = last
        row.op = <Op>ops[t.op] if t.op != C.MB_NONE else None
        row.shape = _shape(s.numbers + t.dims, t.rank) if t.mil_code else None
        row.steps = ()
        if t.step_count:
            row.steps = tuple([(s.numbers[t.steps + k] >> 2, s.numbers[t.steps + k] & 3) for k in range(t.step_count)])
        row.binding = (t.binding, t.binding_count)
        row.blob_offset, row.count, row.mil_code, row.owner, row.storage = t.blob_offset, t.count, t.mil_code, t.owner, t.storage
        row.block = -1 if t.block == C.MB_NONE else <int64_t>t.block
        row.function = -1 if t.function == C.MB_NONE else <int64_t>t.function
        constants.append(row)
    return scan


def text_to_program(Buffer text not None):
    """Parse MIL text to the bytes of the Program it describes: a new bytes object.

    Raises:
        FormatError: with the byte offset in the text (line and column are for text.py to say).
    """
    cdef C.mb_error e
    cdef C.mb_status status
    cdef uint64_t capacity = text.nbytes + 4096, nbytes = 0
    cdef uint8_t *out
    while True:
        out = <uint8_t *>malloc(capacity)
        if out == NULL:
            raise MemoryError
        try:
            with nogil:
                status = C.mb_text_to_program(text.data, text.nbytes, out, capacity, &nbytes, &e)
            if status == C.MB_OK:
                return out[:nbytes]
            if status != C.MB_FULL:
                raise _error(&e, text.name)
            capacity = nbytes
        finally:
            free(out)


def wire_fields(Buffer buffer not None, uint64_t offset, uint64_t nbytes, uint64_t limit=100000):
    """List the fields of one message, not looking inside them: [(number, wire type, value, offset, nbytes)].

    For the few levels of a Model above its Program. More than `limit` fields are refused.
    """
    cdef C.mb_cursor cursor
    cdef C.mb_wire wire
    cdef C.mb_error e
    cdef list result = []
    _span_check(buffer, offset, nbytes)
    cursor = C.mb_cursor_of(buffer.data, buffer.data + offset, nbytes)
    while cursor.at < cursor.end:
        if C.mb_read_field(&cursor, &wire, &e):
            raise _error(&e, buffer.name)
        if <uint64_t>len(result) == limit:
            words = f"fields of one message: expected at most {limit}, got more"
            raise FormatError(words, offset=wire.tag - buffer.data, file=buffer.name)
        result.append((wire.number, wire.type, wire.value, wire.data - buffer.data, wire.nbytes))
    return result
