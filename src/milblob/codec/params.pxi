# Part of _codec.pyx: TVM's .params files.

def params_names(Buffer buffer not None, uint64_t offset, uint64_t nbytes):
    """Read the header and the names of a .params file that lies at [offset, offset + nbytes) of a buffer.

    Returns:
        (names as bytes; reserved of the header; offset of the first record, or of the header if something is wrong;
        exception that it deserves, or None: then there are no names). Offsets count from the start of the buffer.
    """
    _span_check(buffer, offset, nbytes)
    cdef C.mb_cursor cursor = C.mb_cursor_of(buffer.data, buffer.data + offset, nbytes)
    cdef C.mb_error e
    cdef C.mb_param *params = NULL
    cdef uint64_t count = 0, reserved = 0, i
    cdef C.mb_status status
    if C.mb_params_header(&cursor, &count, &reserved, &e):
        return [], reserved, offset, _error(&e, buffer.name)
    params = <C.mb_param *>malloc(<size_t>(count * sizeof(C.mb_param) + 1))
    if params == NULL:
        raise MemoryError(f"names of {count} tensors")
    try:
        with nogil:
            status = C.mb_params_names(&cursor, count, params, &e)
        if status:
            return [], reserved, offset, _error(&e, buffer.name)
        names = [PyBytes_FromStringAndSize(<const char *>buffer.data + params[i].name_offset, <Py_ssize_t>params[i].name_nbytes)
                 for i in range(count)]
    finally:
        free(params)
    return names, reserved, <uint64_t>(cursor.at - cursor.base), None


def params_record(Buffer buffer not None, uint64_t offset, uint64_t end, bytes window=None):
    """Read the record at `offset` of a buffer, of a .params file that ends at `end` of it. No element is touched.

    Args:
        window: bytes of the buffer from `offset` on, if they were read already. If the record lies in them, the buffer
            itself is not touched.

    Returns:
        offset, data offset, nbytes, code, bits, lanes, shape or None if it has more than the 64 dimensions that NumPy
        has, reserved, device id. Offsets count from the start of the buffer.

    Raises:
        FormatError: the bytes are not a record, or its elements reach past the end of the file.
    """
    _span_check(buffer, offset, end - offset if end >= offset else <uint64_t>-1)
    cdef uint64_t left = end - offset, i
    cdef const uint8_t *base = buffer.data + offset
    cdef C.mb_cursor cursor
    cdef C.mb_error e
    cdef C.mb_param p
    cdef C.mb_status status = C.MB_TRUNCATED
    if window is not None:
        base = <const uint8_t *>PyBytes_AsString(window)
        cursor = C.mb_cursor_of(base, base, min(<uint64_t>len(window), left))
        status = C.mb_params_record(&cursor, left, &p, &e)
    if status == C.MB_TRUNCATED:
        base = buffer.data + offset
        cursor = C.mb_cursor_of(base, base, left)
        status = C.mb_params_record(&cursor, left, &p, &e)
    if status:
        e.offset += offset
        raise _error(&e, buffer.name)
    cdef object shape = None
    if p.ndim <= 64:
        shape = tuple([C.mb_load_u64(base + p.shape_offset + 8 * i) for i in range(p.ndim)])
    return offset, offset + p.data_offset, p.nbytes, p.code, p.bits, p.lanes, shape, p.reserved, p.device_id
