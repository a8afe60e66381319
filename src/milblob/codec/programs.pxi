# Part of _codec.pyx: the protobuf and text around Programs.

cdef _text(Buffer buffer, uint64_t offset, uint64_t nbytes):
    try:
        return PyUnicode_DecodeUTF8(<const char *>buffer.data + offset, <Py_ssize_t>nbytes, NULL)
    except UnicodeDecodeError as error:
        raise FormatError(f"text: expected UTF-8, got {error.reason}", offset=offset + error.start, file=buffer.name) from None


def text_to_program(Buffer text not None, statements=None):
    """Parse MIL text to the bytes of the Program it describes: a new bytes object.

    Args:
        statements: a list, to which (offset, nbytes) of each statement in the text is added, in the order of the rows of
            operations that `graph_program` makes of the result.

    Raises:
        FormatError: with the byte offset in the text (the caller converts it to line and column).
    """
    cdef C.mb_error e
    cdef C.mb_status status
    cdef uint64_t capacity = text.nbytes + 4096, nbytes = 0, span_capacity = 0, span_count = 0, i
    cdef uint8_t *out
    cdef C.mb_text_span *spans = NULL
    while True:
        out = <uint8_t *>malloc(capacity)
        if span_capacity:
            spans = <C.mb_text_span *>malloc(span_capacity * sizeof(C.mb_text_span))
        try:
            if out == NULL or (span_capacity and spans == NULL):
                raise MemoryError
            with nogil:
                status = C.mb_text_to_statements(text.data, text.nbytes, out, capacity, &nbytes, spans, span_capacity,
                                                 &span_count, &e)
            if status == C.MB_OK:
                if statements is None:
                    return out[:nbytes]
                if span_count <= span_capacity:
                    for i in range(span_count):
                        statements.append((spans[i].start, spans[i].nbytes))
                    return out[:nbytes]
                span_capacity = span_count
                continue
            if status != C.MB_FULL:
                raise _error(&e, text.name)
            capacity = nbytes
        finally:
            free(out)
            free(spans)
            spans = NULL


def wire_fields(Buffer buffer not None, uint64_t offset, uint64_t nbytes, uint64_t limit=100000):
    """List the fields of one message without parsing nested ones: [(number, wire type, value, offset, nbytes)].

    For the few levels of a Model above its Program. Refuses more than `limit` fields.
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
            message = f"fields of one message: expected at most {limit}, got more"
            raise FormatError(message, offset=wire.tag - buffer.data, file=buffer.name)
        result.append((wire.number, wire.type, wire.value, wire.data - buffer.data, wire.nbytes))
    return result


def next_fields(Buffer buffer not None, uint64_t offset, uint64_t nbytes, dict numbers not None, uint64_t most=4096):
    """List the next fields of one message that have one of these numbers, and return where the rest of it begins.

    For messages of any number of fields: a block has one for each of its operations, a list one for each of its items.

    Args:
        offset, nbytes: of the message, or of the rest of it.
        numbers: the fields that are wanted, as keys.
        most: how many to return, at most.

    Returns:
        ([(number, wire type, value, offset, nbytes)], offset of the rest; offset + nbytes where nothing is left).

    Raises:
        FormatError: malformed.
    """
    cdef C.mb_cursor cursor
    cdef C.mb_wire wire
    cdef C.mb_error e
    cdef list result = []
    _span_check(buffer, offset, nbytes)
    cursor = C.mb_cursor_of(buffer.data, buffer.data + offset, nbytes)
    while cursor.at < cursor.end and <uint64_t>len(result) < most:
        if C.mb_read_field(&cursor, &wire, &e):
            raise _error(&e, buffer.name)
        if wire.number in numbers:
            result.append((wire.number, wire.type, wire.value, wire.data - buffer.data, wire.nbytes))
    return result, cursor.at - buffer.data


def splice_prefixes(Buffer buffer not None, uint64_t offset, uint64_t nbytes, list edits not None):
    """Find the length prefixes that change when ranges of the message at [offset, offset + nbytes) are replaced.

    Args:
        edits: [(offset, nbytes, new nbytes)], ascending and not overlapping. Each range is the whole payload of a
            length-delimited field or a run of whole fields.

    Returns:
        (new nbytes of the message, [(offset, nbytes, new bytes)] of the prefixes, by offset).

    Raises:
        FormatError: a range of any other kind, overlapping edits, or a malformed message on the way.
    """
    cdef uint64_t count = len(edits), capacity, i
    cdef C.mb_edit *rows
    cdef C.mb_level *levels
    cdef C.mb_prefix *prefixes
    cdef C.mb_splice splice
    cdef C.mb_error e
    cdef C.mb_status status
    cdef void *memory
    cdef uint8_t prefix[10]
    _span_check(buffer, offset, nbytes)
    capacity = 16 + 8 * count
    while True:
        memory = malloc(C.MB_SPLICE_DEPTH * sizeof(C.mb_level) + count * sizeof(C.mb_edit) + capacity * sizeof(C.mb_prefix))
        if memory == NULL:
            raise MemoryError
        try:
            levels = <C.mb_level *>memory
            rows = <C.mb_edit *>(levels + C.MB_SPLICE_DEPTH)
            prefixes = <C.mb_prefix *>(rows + count)
            for i in range(count):
                rows[i].offset, rows[i].nbytes, rows[i].new_nbytes = edits[i]
            with nogil:
                status = C.mb_splice_walk(buffer.data, offset, nbytes, rows, count, levels, prefixes, capacity, &splice, &e)
            if status == C.MB_OK:
                changed = []
                for i in range(splice.prefix_count):
                    if prefixes[i].new_length != prefixes[i].length:
                        length = C.mb_varint_write(prefix, prefixes[i].new_length)
                        changed.append((prefixes[i].offset, prefixes[i].nbytes, prefix[:length]))
                return splice.new_nbytes, changed
            if status != C.MB_FULL:
                raise _error(&e, buffer.name)
            capacity = splice.prefix_count
        finally:
            free(memory)
