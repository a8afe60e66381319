# Part of _codec.pyx: elements in their stored forms: packed bits, varints, TensorValues.

def unpack_bits(Buffer buffer not None, uint64_t offset, uint64_t count, unsigned int nbits, out):
    """Unpack `count` elements of `nbits` (1, 2, 3, 4 or 6) at `offset` into `out`, one zero-extended byte each.

    `out` is a writable buffer of exactly `count` bytes and must not overlap `buffer`.
    """
    cdef Py_buffer dst
    cdef const C.mb_tier *tier = _tier
    _span_check(buffer, offset, C.mb_packed_nbytes(count, nbits))
    PyObject_GetBuffer(out, &dst, PyBUF_WRITABLE)
    try:
        if <uint64_t>dst.len != count:
            raise ValueError(f"out: expected {count} bytes, got {dst.len}")
        if _overlap(buffer.data + offset, C.mb_packed_nbytes(count, nbits), <const uint8_t *>dst.buf, count):
            raise ValueError("out: expected memory of its own, got a part of the buffer")
        with nogil:
            C.mb_unpack(tier, <uint8_t *>dst.buf, buffer.data + offset, count, nbits)
    finally:
        PyBuffer_Release(&dst)


cdef _pack_error(C.mb_error *e, uint64_t first, int lo, int hi):
    if e.status == C.MB_RANGE:
        return OverflowError(f"element {first + e.expected}: expected {lo} to {hi}, got {<int64_t>e.got}")
    error = _error(e, None)
    error.offset = None  # no single byte of the array is at fault
    return error


def pack_bits(array, out, unsigned int nbits, int lo, int hi, uint64_t first=0):
    """Pack one-byte elements to `nbits` (1, 2, 3, 4 or 6) each.

    Args:
        array: C-contiguous buffer, one byte per element: int8 if lo < 0, else uint8; lo..hi is the legal range.
        out: writable buffer of exactly the packed size; must not overlap.
        first: index of the first element, for error messages.

    Raises:
        OverflowError: an element is outside lo..hi; `out` is then unspecified.
    """
    cdef Py_buffer src, dst
    cdef C.mb_error e
    cdef C.mb_status status
    cdef const C.mb_tier *tier = _tier
    PyObject_GetBuffer(array, &src, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(out, &dst, PyBUF_WRITABLE)
        try:
            if <uint64_t>dst.len != C.mb_packed_nbytes(<uint64_t>src.len, nbits):
                raise ValueError(f"out: expected {C.mb_packed_nbytes(<uint64_t>src.len, nbits)} bytes, got {dst.len}")
            with nogil:
                status = C.mb_pack(tier, <int>nbits, <uint8_t *>dst.buf, <uint64_t>dst.len, src.buf, <uint64_t>src.len,
                                   lo, hi, &e)
        finally:
            PyBuffer_Release(&dst)
    finally:
        PyBuffer_Release(&src)
    if status:
        raise _pack_error(&e, first, lo, hi)


cdef bytes _tensor_begin(int field, uint64_t payload, uint64_t *head):
    """A TensorValue that ends in a payload of this size, not yet written; `head` gets the offset of the payload."""
    cdef uint8_t header[32]
    cdef bytes result
    header[0] = <uint8_t>(field << 3 | 2)
    head[0] = 1 + C.mb_varint_write(header + 1, 1 + C.mb_varint_length(payload) + payload if payload else 0)
    if payload:
        header[head[0]] = 0x0a
        head[0] += 1 + C.mb_varint_write(header + head[0] + 1, payload)
    result = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(head[0] + payload))
    C.mb_advise_huge(PyBytes_AsString(result), head[0] + payload)
    memcpy(PyBytes_AsString(result), header, head[0])
    return result


def tensor_pack(int field, array, int kind, int lo=0, int hi=0):
    """Serialize a TensorValue from a C-contiguous array.

    Args:
        field: number of the TensorValue field.
        array: contiguous buffer, aligned to an element; little-endian where `kind` is PACK_RAW.
        kind: PACK_RAW copies the bytes; PACK_BOOL makes every nonzero byte 1; PACK_I16, PACK_U16, PACK_I32, PACK_I64
            encode elements of that type as varints; 1, 2, 3, 4 or 6 packs one-byte elements to that many bits, checked
            against lo..hi (int8 if lo < 0).

    Returns:
        bytes: the TensorValue message. An empty array gives the field with no values, as coremltools writes it.

    Raises:
        OverflowError: an element is outside lo..hi.
        FormatError: another thread changed the array during the call, so its elements take more or fewer bytes than
            counted.
    """
    cdef Py_buffer src
    cdef C.mb_error e
    cdef C.mb_status status = C.MB_OK
    cdef uint64_t count, payload = 0, head = 0
    cdef uint8_t *at
    cdef bytes result
    cdef const C.mb_tier *tier = _tier
    PyObject_GetBuffer(array, &src, PyBUF_SIMPLE)
    try:
        count = <uint64_t>src.len // C.mb_pack_itemsize(kind)
        payload = C.mb_pack_nbytes(tier, kind, src.buf, count)
        result = _tensor_begin(field, payload, &head)
        at = <uint8_t *>PyBytes_AsString(result)
        if payload:
            with nogil:
                status = C.mb_pack(tier, kind, at + head, payload, src.buf, count, lo, hi, &e)
    finally:
        PyBuffer_Release(&src)
    if status:
        raise _pack_error(&e, 0, lo, hi)
    return result


def tensor_begin(int field, uint64_t payload):
    """Make a TensorValue whose payload `varint_encode` writes, part by part: (message, offset of the payload).

    No other code may see the message until its whole payload is written.
    """
    cdef uint64_t head = 0
    result = _tensor_begin(field, payload, &head)
    return result, head


def varint_nbytes(array, int kind):
    """Return the bytes that the elements of a contiguous, aligned array take as varints; `kind` as in `tensor_pack`."""
    cdef Py_buffer src
    cdef uint64_t nbytes
    cdef const C.mb_tier *tier = _tier
    PyObject_GetBuffer(array, &src, PyBUF_SIMPLE)
    try:
        with nogil:
            nbytes = C.mb_pack_nbytes(tier, kind, src.buf, <uint64_t>src.len // C.mb_pack_itemsize(kind))
    finally:
        PyBuffer_Release(&src)
    return nbytes


def varint_encode(array, int kind, bytes message not None, uint64_t offset, uint64_t nbytes):
    """Write elements as varints to [offset, offset + nbytes) of a message that `tensor_begin` made.

    Args:
        nbytes: what `varint_nbytes` gave for this array.

    Raises:
        FormatError: as `tensor_pack`.
    """
    cdef Py_buffer src
    cdef C.mb_error e
    cdef C.mb_status status
    cdef uint8_t *at = <uint8_t *>PyBytes_AsString(message) + offset
    cdef const C.mb_tier *tier = _tier
    if offset > <uint64_t>len(message) or nbytes > <uint64_t>len(message) - offset:
        raise ValueError(f"message: expected {offset} + {nbytes} bytes, got {len(message)}")
    PyObject_GetBuffer(array, &src, PyBUF_SIMPLE)
    try:
        with nogil:
            status = C.mb_pack(tier, kind, at, nbytes, src.buf, <uint64_t>src.len // C.mb_pack_itemsize(kind), 0, 0, &e)
    finally:
        PyBuffer_Release(&src)
    if status:
        raise _pack_error(&e, 0, 0, 0)


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
        the payload is contiguous at payload offset; with more, tensor_gather concatenates it.
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
    """Concatenate the chunks of a located TensorValue: bytes, one packed run of `nbytes`."""
    cdef C.mb_tensor t
    cdef C.mb_error e
    cdef bytes result = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>nbytes)
    cdef uint8_t *dst = <uint8_t *>PyBytes_AsString(result)
    C.mb_advise_huge(dst, nbytes)
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


def varint_split(Buffer buffer not None, uint64_t offset, uint64_t nbytes, uint64_t some):
    """Return the bytes up to the first varint that ends at or after `some` of [offset, offset + nbytes), and their varints."""
    cdef uint64_t taken, count
    cdef const uint8_t *src = buffer.data + offset
    _span_check(buffer, offset, nbytes)
    with nogil:
        taken = C.mb_varint_boundary(src, min(some, nbytes), nbytes)
        count = C.mb_varint_count(src, taken)
    return taken, count


def varint_decode(Buffer buffer not None, uint64_t offset, uint64_t nbytes, out, unsigned int itemsize, int64_t lo, int64_t hi,
                  bint is_bool=False):
    """Decode varints to elements of `itemsize` bytes (1, 2, 4, 8), each within lo..hi.

    Args:
        out: writable, aligned buffer that must not overlap `buffer`; its size gives the required number of elements.

    Raises:
        FormatError: a value out of range (its index is named), a malformed varint, or the wrong number of them.
    """
    cdef Py_buffer dst
    cdef C.mb_error e
    cdef C.mb_status status
    cdef uint64_t count
    cdef const uint8_t *src = buffer.data + offset
    cdef const C.mb_tier *tier = _tier
    _span_check(buffer, offset, nbytes)
    PyObject_GetBuffer(out, &dst, PyBUF_WRITABLE)
    count = <uint64_t>dst.len // itemsize
    try:
        if _overlap(src, nbytes, <const uint8_t *>dst.buf, <uint64_t>dst.len):
            raise ValueError("out: expected memory of its own, got a part of the buffer")
        with nogil:
            status = C.mb_varint_decode(tier, dst.buf, itemsize, is_bool, src, nbytes, count, lo, hi, &e)
    finally:
        PyBuffer_Release(&dst)
    if not status:
        return
    e.offset += offset
    if status == C.MB_RANGE:
        raise FormatError(f"element {e.expected}: expected {lo} to {hi}, got {<int64_t>e.got}", offset=e.offset, file=buffer.name)
    raise _error(&e, buffer.name)
