# Part of _codec.pyx: MIL text, written from a Graph and the Program's bytes.

cdef enum:
    _TEXT_NBYTES = 1 << 18    # of text that is kept before it goes on
    _KEYS = 64                # of one map, at first


cdef class _TextSink:
    """Passes the output of C to `write`; keeps the first exception of `write`, which ends the writing."""
    cdef object write, error


cdef int _text_flush(void *context, const uint8_t *data, uint64_t nbytes) noexcept with gil:
    cdef _TextSink sink = <_TextSink>context
    try:
        sink.write(data[:nbytes])
        return 1
    except BaseException as error:
        sink.error = error
        return 0


cdef C.mb_status _text_steps(C.mb_writer *w, C.mb_span program, bint whole, list functions, list statements, uint64_t minor,
                             bytes end) except? C.MB_FULL:
    """Write everything once, to the flush of `w`."""
    cdef C.mb_status status
    cdef uint32_t row
    if whole:
        with nogil:
            status = C.mb_text_write(w, C.MB_WRITE_HEADER, program, 0, minor)
        if status != C.MB_OK:
            return status
    for row in functions:
        with nogil:
            status = C.mb_text_write(w, C.MB_WRITE_FUNCTION, program, row, 0)
        if status != C.MB_OK:
            return status
    for row in statements:
        with nogil:
            status = C.mb_text_write(w, C.MB_WRITE_STATEMENT, program, row, 0)
        if status != C.MB_OK:
            return status
    if w.print.flush != NULL:
        with nogil:
            C.mb_print_flush(&w.print)
        if not w.print.stopped and end:
            _text_flush(w.print.context, end, len(end))
    return C.MB_FULL if w.print.stopped else C.MB_OK


def graph_text(Graph graph not None, uint64_t offset, uint64_t nbytes, write, path, bint whole, list functions not None,
               list statements not None, uint64_t minor=3, bytes end=b"", int weights=0, bint is_plain=False):
    """Write functions and operations of a Program as MIL text. All of it is checked before anything is written.

    Args:
        graph: made of the Program at [offset, offset + nbytes) with SCAN_KNOWN.
        write: called with bytes, many times.
        path: called with the row of an operation; the path for messages.
        whole: write the head of the text before.
        functions, statements: rows of functions, then of operations alone.
        minor: version of the text; 0 spells scalars as tensors.    end: the text at the end.
        weights: WRITE_ALL, WRITE_CUT or WRITE_NONE of the elements of immediates of ten or more.

    Returns:
        False if the Program must be brought into plain form first; nothing has been written then.

    Raises:
        UnsupportedError: something that text cannot hold. FormatError: malformed. Any error of `write`.
    """
    cdef Buffer buffer = graph.held()
    cdef C.mb_writer w
    cdef C.mb_error e
    cdef C.mb_status status
    cdef C.mb_span program
    cdef _TextSink sink = _TextSink.__new__(_TextSink)
    cdef uint64_t capacity = _KEYS
    cdef uint8_t *out = NULL
    cdef C.mb_write_key *keys = NULL
    cdef uint32_t row
    _span_check(buffer, offset, nbytes)
    program.offset, program.nbytes = offset, nbytes
    for row in functions:
        if row >= graph.rows.function_count:
            raise IndexError(row)
    for row in statements:
        if row >= graph.rows.operation_count:
            raise IndexError(row)
    memset(&w, 0, sizeof(w))
    w.graph, w.base, w.error = &graph.rows, buffer.data, &e
    w.runs = _tier.varint_run
    w.is_plain, w.has_scalars, w.weights = is_plain, minor != 0, <C.mb_write_weights>weights
    sink.write = write
    try:
        out = <uint8_t *>malloc(_TEXT_NBYTES)
        w.print.out, w.print.capacity = out, _TEXT_NBYTES
        if out == NULL:
            raise MemoryError
        while True:
            free(keys)
            keys = <C.mb_write_key *>malloc(capacity * sizeof(C.mb_write_key))
            if keys == NULL:
                raise MemoryError
            w.keys, w.key_capacity = keys, capacity
            w.print.at = 0
            status = _text_steps(&w, program, whole, functions, statements, minor, end)
            if status != C.MB_FULL:
                break
            capacity *= 2
        if status == C.MB_OK:
            w.print.at = 0
            w.print.flush, w.print.context = _text_flush, <void *>sink
            status = _text_steps(&w, program, whole, functions, statements, minor, end)
            if sink.error is not None:
                raise sink.error
            if status == C.MB_OK:
                return True
            if status == C.MB_FULL or status == C.MB_SPLIT:
                message = "Program: expected the same bytes as a moment ago, got others: they changed while text was written"
                raise FormatError(message, file=buffer.name)
        if status == C.MB_SPLIT:
            return False
        raise _error(&e, buffer.name, path(w.operation) if w.operation != C.MB_NONE else "")
    finally:
        free(keys)
        free(out)
