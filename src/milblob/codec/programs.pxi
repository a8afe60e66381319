# Part of _codec.pyx: Programs and the protobuf and text around them.

cdef _text(Buffer buffer, uint64_t offset, uint64_t nbytes):
    try:
        return PyUnicode_DecodeUTF8(<const char *>buffer.data + offset, <Py_ssize_t>nbytes, NULL)
    except UnicodeDecodeError as error:
        raise FormatError(f"text: expected UTF-8, got {error.reason}", offset=offset + error.start, file=buffer.name) from None


# Rows refer to numbers and text only, and constants to their operation: there are no cycles, so the garbage collector need
# not track them. For a Program with 119,000 weights, tracking would take longer than creating them.


@cython.no_gc
cdef class Op:
    """An output of an operation that owns constants: see mb_op. `shape` is None and `mil_code` 0 where it is no tensor."""
    cdef C.mb_span _message
    cdef readonly str name, type
    cdef readonly uint32_t block, index, output_count, mil_code
    cdef readonly object shape

    @property
    def message(self):
        return self._message.offset, self._message.nbytes


@cython.no_gc
cdef class Constant:
    """One tensor constant of a Program, or one use of a name: its position, not its contents.

    value, payload: (offset, nbytes) of the Value message and of its TensorValue (IMMEDIATE), in the scanned buffer.
    text: the blob's fileName (BLOB) or the name that is read (NAME).    key: parameter or attribute.
    shape: declared dimensions, None where open.    steps: (index, 0 item | 1 key | 2 value) per level of nesting.
    """
    cdef C.mb_span _value, _payload
    cdef uint32_t _binding, _binding_count
    cdef readonly tuple steps
    cdef readonly str key, text
    cdef readonly Op op
    cdef readonly object shape
    cdef readonly uint64_t blob_offset, count
    cdef readonly uint32_t mil_code, owner, storage
    cdef readonly int64_t block, function

    @property
    def value(self):
        return self._value.offset, self._value.nbytes

    @property
    def payload(self):
        return self._payload.offset, self._payload.nbytes

    @property
    def binding(self):
        return self._binding, self._binding_count


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
    """Return where a scan stopped. Names may themselves be malformed, so they are decoded with replacement."""
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
    # Room for the rows of most Programs; else a second pass with the exact counts. The unused part is never touched: it
    # takes address space, not memory.
    cdef uint64_t guess = min(max(nbytes // 256, <uint64_t>1024), <uint64_t>1 << 18)
    cdef uint64_t functions = 16, blocks = 64, ops = guess, entries = guess, numbers = 4 * guess
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
            # An error in a block that has no row yet: scan again with room for it, so the message can name it.
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
        if o.type.nbytes != last_nbytes or memcmp(buffer.data + o.type.offset, buffer.data + last_offset, last_nbytes):
            last_offset, last_nbytes = o.type.offset, o.type.nbytes
            last = _text(buffer, last_offset, last_nbytes)
        op.type = last  # nearly always "const", as in the operation before: one str for a run of equal ones
        op.block, op.index, op.output_count, op.mil_code = o.block, o.index, o.output_count, o.mil_code
        op.shape = _shape(s.numbers + o.dims, o.rank) if o.mil_code else None
        op._message = o.message
        ops.append(op)
    scan.constants = constants = []
    last_offset, last_nbytes, last = 0, 0, ""
    for i in range(s.entry_count):
        t = &s.entries[i]
        row = Constant.__new__(Constant)
        row._value, row._payload = t.value, t.payload
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
        row._binding, row._binding_count = t.binding, t.binding_count
        row.blob_offset, row.count, row.mil_code, row.owner, row.storage = t.blob_offset, t.count, t.mil_code, t.owner, t.storage
        row.block = -1 if t.block == C.MB_NONE else <int64_t>t.block
        row.function = -1 if t.function == C.MB_NONE else <int64_t>t.function
        constants.append(row)
    return scan


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
            words = f"fields of one message: expected at most {limit}, got more"
            raise FormatError(words, offset=wire.tag - buffer.data, file=buffer.name)
        result.append((wire.number, wire.type, wire.value, wire.data - buffer.data, wire.nbytes))
    return result


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
