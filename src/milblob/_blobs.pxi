# Part of _codec.pyx: records of blob files.

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


def exchange(bytes a not None, bytes b not None):
    """Swap what two paths of one file system name, files or directories, in one step.

    Returns:
        0, or the errno: ENOSYS, EINVAL or ENOTSUP where it cannot be done in one step.
    """
    cdef const char *first = a
    cdef const char *second = b
    cdef int code
    with nogil:
        code = C.mb_exchange(first, second)
    return code
