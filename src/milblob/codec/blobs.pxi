# Part of _codec.pyx: records of blob files.

def blob_count(Buffer buffer not None):
    """Return the record count of a storage header, checked against the size of the file.

    Raises:
        FormatError: the buffer is shorter than a header, or too short for its record count.
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
        (number of valid rows, exception for the next one or None).
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
    """Check the record at `offset`; return (data_offset, nbytes, count, padding_nbits, blob code)."""
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
        metadata: the 64 bytes at each offset, if they were read already; the buffer itself is then not touched.

    Returns:
        (number of valid rows, exception for the next one or None).
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
                given = <const uint8_t *>PyBytes_AsString(metadata)
            with nogil:
                status = C.mb_blob_records_at(buffer.data, buffer.nbytes, given, <const uint64_t *>src.buf, count,
                                              <C.mb_blob_record *>out.buf, &done, &e)
        finally:
            PyBuffer_Release(&out)
    finally:
        PyBuffer_Release(&src)
    return done, _error(&e, buffer.name) if status else None


def blob_header(uint32_t count):
    """Return the 64 bytes of a storage header."""
    cdef uint8_t header[64]
    C.mb_blob_header_store(header, count)
    return header[:64]


def blob_metadata(uint32_t blob_code, uint64_t nbytes, uint64_t data_offset, uint64_t padding_nbits=0):
    """Return the 64 bytes of a record's metadata, reserved fields zero."""
    cdef uint8_t metadata[64]
    C.mb_blob_record_store(metadata, blob_code, nbytes, data_offset, padding_nbits)
    return metadata[:64]


def blob_place(uint64_t end, uint64_t align=64):
    """Return (offset, data offset) of the next record after data ending at `end`; align is a power of two, 64 or more.

    Raises:
        OverflowError: past 64 bits.
    """
    cdef uint64_t offset, data_offset
    if not C.mb_blob_place(end, align, &offset, &data_offset):
        raise OverflowError(f"offset of the next record: expected less than 2^64, got one after {end}")
    return offset, data_offset


cdef class RecordBuffer:
    """The end of a file that is being written: the bytes that are not in the file yet, and where the next record goes.

    Args:
        turn: to use it; `add` takes it by itself, the caller of anything else has it.
        nbytes: size of the memory, which is allocated when it is first needed. Arrays of up to a quarter are taken.
        align: multiple that the data of records is placed at.
        kind: the type of array that is taken (ndarray).
        codes: NumPy dtype -> blob code, of byte-sized dtypes.

    Attributes:
        base: offset in the file of the first byte of `memory`. end: offset after the last data so far, base <= end.
        count: records so far.
        takes: whether `add` may take an array; False at first.
        memory: the bytes of the file from `base` on; never changes its size.
    """
    cdef Turn turn
    cdef uint64_t nbytes
    cdef bytearray held  # `memory`; None: not allocated
    cdef uint8_t *at  # of `held`
    cdef object kind, last
    cdef dict codes
    cdef uint32_t code  # of `last`
    cdef readonly uint64_t align
    cdef public uint64_t base, end, count
    cdef public bint takes

    def __cinit__(self, Turn turn not None, uint64_t nbytes, uint64_t align, kind, dict codes not None):
        self.turn, self.nbytes, self.align, self.kind, self.codes = turn, nbytes, align, kind, codes

    @property
    def memory(self):
        if self.held is None:
            self.held = bytearray(self.nbytes)
            self.at = <uint8_t *>PyByteArray_AsString(self.held)
        return self.held

    def release(self):
        """Release the memory, and take no more arrays."""
        self.takes, self.held, self.at = False, None, NULL

    def add(self, array):
        """Lay out an array as the next record; return the offset of its metadata.

        Returns: 0, and nothing has changed, if the array needs more than a copy (another type than `kind`, strided, or
        of a dtype without a code), is large, or does not fit into what is left of `memory`; or the turn is taken.
        """
        if not self.turn.take_free():
            return 0
        try:
            return self.take(array)
        finally:
            self.turn.release()

    cdef uint64_t take(self, array) except? 0:
        cdef Py_buffer src
        cdef uint64_t offset = 0, data_offset = 0, nbytes
        cdef object dtype, found
        if not self.takes or type(array) is not self.kind:
            return 0
        dtype = array.dtype
        if dtype is not self.last:
            found = self.codes.get(dtype)
            if found is None:
                return 0
            self.last, self.code = dtype, found
        if self.at == NULL:
            self.memory
        if not C.mb_blob_place(self.end, self.align, &offset, &data_offset) or self.end < self.base:
            return 0
        if data_offset - self.base > self.nbytes:
            return 0
        try:
            PyObject_GetBuffer(array, &src, PyBUF_SIMPLE)
        except (BufferError, ValueError):  # strided
            return 0
        nbytes = <uint64_t>src.len
        if nbytes > self.nbytes // 4 or nbytes > self.nbytes - (data_offset - self.base):
            PyBuffer_Release(&src)
            return 0
        memset(self.at + (self.end - self.base), 0, data_offset - self.end)
        C.mb_blob_record_store(self.at + (offset - self.base), self.code, nbytes, data_offset, 0)
        memcpy(self.at + (data_offset - self.base), src.buf, <size_t>nbytes)
        PyBuffer_Release(&src)
        self.end = data_offset + nbytes
        self.count += 1
        return offset

    def add_all(self, list arrays not None, Py_ssize_t start, list offsets not None):
        """Add arrays, and their offsets to `offsets`, up to the first that `add` does not take; return its index."""
        cdef uint64_t offset
        while start < len(arrays):
            offset = self.take(arrays[start])
            if offset == 0:
                break
            offsets.append(offset)
            start += 1
        return start


def hash_bytes(Buffer buffer not None, uint64_t offset, uint64_t nbytes, uint64_t seed=0):
    """Return a 64-bit hash of [offset, offset + nbytes): to find candidates; never proof of equality. See hash.h."""
    cdef uint64_t value
    _span_check(buffer, offset, nbytes)
    with nogil:
        value = C.mb_hash(buffer.data + offset, nbytes, seed)
    return value


def equal_bytes(Buffer a not None, uint64_t a_offset, Buffer b not None, uint64_t b_offset, uint64_t nbytes):
    """Return whether `nbytes` at a_offset of one buffer equal those at b_offset of another."""
    cdef int difference
    _span_check(a, a_offset, nbytes)
    _span_check(b, b_offset, nbytes)
    with nogil:
        difference = memcmp(a.data + a_offset, b.data + b_offset, <size_t>nbytes)
    return difference == 0


def exchange(bytes a not None, bytes b not None):
    """Exchange two paths of one file system, files or directories, in one step.

    Returns:
        0, or the errno: ENOSYS, EINVAL or ENOTSUP where it cannot be done in one step.
    """
    cdef const char *first = a
    cdef const char *second = b
    cdef int code
    with nogil:
        code = C.mb_exchange(first, second)
    return code


def start_writing(int fd, uint64_t offset, uint64_t nbytes):
    """Start writing bytes of a file to the disk, so that a sync that follows has less to wait for.

    Returns:
        0, or the errno: ENOSYS if the system lacks the call.
    """
    cdef int code
    with nogil:
        code = C.mb_start_writing(fd, offset, nbytes)
    return code


def open_beneath(int fd, bytes name not None, int flags):
    """Open a name relative to a directory without leaving it, with the flags of os.open.

    Returns:
        A descriptor; or the negative errno: ENOSYS if the system lacks the call, EXDEV for a link that escapes.
    """
    cdef const char *text = name
    cdef int result
    with nogil:
        result = C.mb_open_beneath(fd, text, flags)
    return result


def look_above(bytes path not None, bytes name not None):
    """Look for a name in a directory and in every directory above it; beside `path`, as ".BASE" + name, if that is none.

    Args:
        path: absolute, without a slash at its end unless it is the root.

    Returns:
        The bytes of `path` that are the directory where the name is; len(path) + 1 if it is beside `path`; 0 if it is
        nowhere; or the negative errno of a place that cannot be examined, ENOSYS where the system has no lstat.
    """
    cdef const char *directory = path
    cdef const char *entry = name
    cdef int64_t result
    with nogil:
        result = C.mb_look_above(directory, entry)
    return result
