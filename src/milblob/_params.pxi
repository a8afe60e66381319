# Part of _codec.pyx: records of TVM's .params files.

cdef tuple _param_row(const uint8_t *base, C.mb_param *p):
    cdef object shape = None
    if p.ndim <= 64:
        shape = tuple([C.mb_load_u64(base + p.shape_offset + 8 * i) for i in range(p.ndim)])
    return (p.offset, p.data_offset, p.nbytes, p.code, p.bits, p.lanes, shape, p.reserved, p.device_id)


def params_scan(Buffer buffer not None, uint64_t offset, uint64_t nbytes):
    """Find the tensors of a .params file that lies at [offset, offset + nbytes) of a buffer. No element is touched.

    Returns:
        (names as bytes; one row for each good record: offset, data offset, nbytes, code, bits, lanes, shape or None if
        it has more than the 64 dimensions that NumPy has, reserved, device id; reserved of the header; end of the last good record; exception that what follows deserves, or None).
        Offsets count from the start of the buffer. There may be fewer rows than names, never more.
    """
    _span_check(buffer, offset, nbytes)
    cdef C.mb_cursor cursor = C.mb_cursor_of(buffer.data, buffer.data + offset, nbytes)
    cdef C.mb_error e
    cdef C.mb_status status
    cdef C.mb_param *params = NULL
    cdef uint64_t count = 0, reserved = 0, done = 0, named = 0, i
    cdef list names = [], rows = []
    cdef object error
    status = C.mb_params_header(&cursor, &count, &reserved, &e)
    if status == C.MB_OK and count > 0:
        params = <C.mb_param *>calloc(<size_t>count, sizeof(C.mb_param))
        if params == NULL:
            raise MemoryError(f"{count} tensors of a .params file")
    try:
        with nogil:
            if status == C.MB_OK:
                status = C.mb_params_names(&cursor, count, params, &e)
                if status == C.MB_OK:
                    named = count
                    status = C.mb_params_records(&cursor, count, params, &done, &e)
        for i in range(named):
            names.append(PyBytes_FromStringAndSize(<const char *>buffer.data + params[i].name_offset,
                                                   <Py_ssize_t>params[i].name_nbytes))
        for i in range(done):
            rows.append(_param_row(buffer.data, &params[i]))
        i = offset
        if done:
            i = params[done - 1].data_offset + params[done - 1].nbytes
        elif status == C.MB_OK:
            i = <uint64_t>(cursor.at - cursor.base)
    finally:
        free(params)
    error = _error(&e, buffer.name) if status else None
    return names, rows, reserved, i, error
