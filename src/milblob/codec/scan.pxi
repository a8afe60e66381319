# Part of _codec.pyx: the scan of a Program for its constants.

cdef class Chains


cdef class Scan:
    """The result of scanning a Program: see scan_program.

    functions: [(name, opset, (offset, nbytes))]; blocks: [(name, function, parent or -1, number, index)];
    version: Program.version.

    The rows of operations and constants are in the memory that the scan filled until `settle`, and in less from then
    on. After its own constants come those of `Chains.finish`, which are parts of compressed weights but not weights.
    """
    cdef readonly list functions, blocks
    cdef readonly uint64_t version
    cdef readonly bint has_constexpr  # some operation's type begins with "constexpr_"
    cdef Buffer buffer
    cdef object origin
    cdef object token         # of its constants, whose `row` counts in it
    cdef void *memory         # the tables of `rows`, until they are settled
    cdef C.mb_scan rows
    cdef uint64_t own_count, own_op_count  # constants and operations without those of `Chains.finish`
    cdef list made_ops, made_constants
    cdef C.mb_kept_row *kept
    cdef C.mb_kept_op *kept_ops
    cdef uint8_t *kept_texts
    cdef uint64_t kept_count, kept_op_count, kept_text_nbytes
    cdef list forms
    cdef Names base

    def __dealloc__(self):
        free(self.memory)
        free(self.kept)
        free(self.kept_ops)
        free(self.kept_texts)

    def __len__(self):  # constants
        return <Py_ssize_t>self.own_count

    @property
    def total(self):
        """How many constants there are, with those that are only parts of compressed weights."""
        return self.rows.entry_count

    @property
    def nbytes(self):
        """The memory that the rows of constants and of constexpr operations take, once settled, without objects and names."""
        return self.kept_count * sizeof(C.mb_kept_row) + self.kept_op_count * sizeof(C.mb_kept_op) + self.kept_text_nbytes

    def require_texts(self):
        """Check that the texts of all rows are UTF-8.

        Raises:
            FormatError: with the place of the first that is not.
        """
        cdef bint good = True
        if self.memory != NULL:
            with nogil:
                good = C.mb_scan_utf8(&self.rows)
        if not good:
            self.make_lists()

    def names(self, str prefix not None, uint64_t most):
        """Return the names of the constants, and after them of the outputs of constexpr operations.

        Args:
            prefix: put before every name. most: bytes of all names together.

        Raises:
            FormatError: more bytes, or names that are not UTF-8.
        """
        cdef Names names = self.base
        cdef Py_ssize_t nbytes
        cdef uint64_t guess = 64 * self.rows.entry_count + 4096, rows = self.rows.entry_count, room = 0
        cdef bint with_ops = self.has_constexpr
        if names is not None:
            return names
        self.require_rows()
        names = Names.__new__(Names)
        names.prefix = prefix
        names.rows.prefix = <const uint8_t *>PyUnicode_AsUTF8AndSize(prefix, &nbytes)
        names.rows.prefix_nbytes = <uint64_t>nbytes
        if with_ops:
            rows += self.rows.op_count
        while True:
            names.make_room(guess, rows)
            with nogil:
                C.mb_names_add_entries(&names.rows, &self.rows)
                if with_ops:
                    C.mb_names_add_ops(&names.rows, &self.rows)
            _require_names(names.rows.nbytes, min(most, <uint64_t>C.MB_MAX_NAMES - 1), self.buffer.name)
            if names.rows.nbytes <= names.rows.capacity:
                break
            if room:  # the bytes change while they are read
                message = f"names of all constants: expected {room} bytes as counted before, got {names.rows.nbytes}"
                raise FormatError(message, file=self.buffer.name)
            guess = room = names.rows.nbytes
        if not C.mb_names_utf8(&names.rows):
            self.make_lists()  # raises an error with the place
            raise FormatError("names of all constants: expected UTF-8, got other bytes", file=self.buffer.name)
        names.finish()
        self.base = names
        return names

    def settle(self, Chains chains=None):
        """Bring the rows into their final form; call `names` before. Nothing refers to the bytes from then on.

        Args:
            chains: the inputs of its constexpr operations, if any.

        Raises:
            FormatError: texts that are not UTF-8.
        """
        cdef C.mb_kept kept
        cdef uint64_t i, count = self.rows.entry_count, ops = 0
        cdef bint good = False
        cdef dict words = {}
        if self.memory == NULL:
            return
        if self.base is None:
            raise ValueError("names: expected them made before, got none")
        memset(&kept, 0, sizeof(kept))
        if chains is not None:
            if self.base.rows.count != count + chains.rows.op_count:
                raise FormatError("names of all constants: expected as many as counted before, got others", file=self.buffer.name)
            ops, kept.numbers = chains.rows.op_count, chains.rows.numbers
            for i in range(count):
                if self.rows.entries[i].storage == NAME:
                    kept.text_capacity += self.rows.entries[i].payload.nbytes
        kept.slot_count = 4
        while kept.slot_count < 2 * (count + ops) + 2:
            kept.slot_count *= 2
        kept.rows = <C.mb_kept_row *>malloc((count + 1) * sizeof(C.mb_kept_row))
        kept.ops = <C.mb_kept_op *>malloc((ops + 1) * sizeof(C.mb_kept_op))
        kept.forms = <C.mb_form *>malloc((count + ops + 1) * sizeof(C.mb_form))
        kept.slots = <uint32_t *>calloc(kept.slot_count, sizeof(uint32_t))
        kept.texts = <uint8_t *>malloc(kept.text_capacity + 1)
        try:
            if kept.rows == NULL or kept.ops == NULL or kept.forms == NULL or kept.slots == NULL or kept.texts == NULL:
                raise MemoryError
            with nogil:
                good = C.mb_keep_rows(&kept, &self.base.rows, &self.rows, &_key)
            if good:
                self.forms = [self.form_of(&kept.forms[i], words) for i in range(kept.form_count)]
                self.kept, self.kept_count, kept.rows = kept.rows, count, NULL
                self.kept_ops, self.kept_op_count, kept.ops = kept.ops, ops, NULL
                self.kept_texts, self.kept_text_nbytes, kept.texts = kept.texts, kept.text_nbytes, NULL
                self.made_ops = self.made_constants = None
            else:
                self.make_lists()
            if chains is not None:
                free(chains.rows.numbers)
                chains.rows.numbers = NULL
        finally:
            free(kept.rows)
            free(kept.ops)
            free(kept.forms)
            free(kept.slots)
            free(kept.texts)
        self.forget_rows()

    cdef bint is_tensor(self, uint64_t number, uint64_t row):
        """Whether an output of a constexpr operation is a tensor; row: of the operations that the scan filled."""
        if self.kept != NULL:
            return (<_Form>self.forms[self.kept_ops[number].form]).row.op_mil_code != 0
        if self.memory != NULL:
            return self.rows.ops[row].mil_code != 0
        return (<Op>self.made_ops[row]).mil_code != 0

    cdef bint is_name(self, uint64_t i):
        """Whether a constant only reads a name."""
        if self.kept != NULL:
            return (<_Form>self.forms[self.kept[i].form]).row.storage == NAME
        if self.memory != NULL:
            return self.rows.entries[i].storage == NAME
        return (<Constant>self.made_constants[i]).storage == NAME

    def release(self):
        """Release the Program's bytes. The settled rows are kept."""
        self.forget_rows()
        self.buffer = None

    cdef void forget_rows(self) noexcept:
        free(self.memory)
        self.memory = NULL
        self.rows.functions, self.rows.blocks, self.rows.ops, self.rows.entries, self.rows.numbers = NULL, NULL, NULL, NULL, NULL

    cdef int require_rows(self) except -1:
        if self.memory == NULL or self.buffer is None:
            raise ValueError("I/O operation on closed model")
        return 0

    cdef _Form form_of(self, C.mb_form *row, dict words):
        """Copy the texts and shapes that a form refers to. `words` makes equal texts one object."""
        cdef _Form form = _Form.__new__(_Form)
        cdef uint32_t k
        form.row = row[0]
        key, text = self.text(row.key), self.text(row.text)
        form.key, form.text = words.setdefault(key, key), words.setdefault(text, text)
        if row.storage != BLOB:
            form.text = None
        if row.has_op:
            type_ = self.text(row.type)
            form.type = words.setdefault(type_, type_)
        form.steps = tuple([(self.rows.numbers[row.steps + k] >> 2, self.rows.numbers[row.steps + k] & 3)
                            for k in range(row.step_count)])
        shape = _shape(self.rows.numbers + row.dims, row.rank) if row.mil_code else None
        form.shape = words.setdefault(shape, shape)
        shape = _shape(self.rows.numbers + row.op_dims, row.op_rank) if row.op_mil_code else None
        form.op_shape = words.setdefault(shape, shape)
        is_text = row.storage == IMMEDIATE and row.mil_code == C.MB_MIL_STRING
        form.has_size = not is_text and form.shape is not None and None not in form.shape
        return form

    cdef str text(self, C.mb_span span):
        return _text(self.buffer, span.offset, span.nbytes)

    @property
    def ops(self):
        """[Op]: the operations that own constants, and each output of constexpr ones."""
        cdef uint64_t i, k = 0
        cdef C.mb_kept_row *row
        cdef uint64_t last = <uint64_t>-1
        cdef _Form form
        if self.made_ops is None and self.kept == NULL:
            self.make_lists()
        if self.made_ops is not None:
            return self.made_ops if self.rows.op_count == self.own_op_count else self.made_ops[:self.own_op_count]
        found = []
        for i in range(self.own_count):
            row = &self.kept[i]
            form = <_Form>self.forms[row.form]
            if form.row.is_chain or not form.row.has_op or row.value - row.value_in_op == last:
                continue
            last = row.value - row.value_in_op
            while k < self.kept_op_count and self.kept_ops[k].message < last:
                found.append(self.chain_op(k))
                k += 1
            found.append(self.kept_op(i))
        return found + [self.chain_op(i) for i in range(k, self.kept_op_count)]

    @property
    def constants(self):
        """[Constant], in Program order."""
        cdef uint64_t i
        cdef C.mb_kept_row *row
        cdef Op op = None
        cdef uint64_t last = <uint64_t>-1
        cdef _Form form
        if self.made_constants is None and self.kept == NULL:
            self.make_lists()
        if self.made_constants is not None:
            return self.made_constants if self.rows.entry_count == self.own_count else self.made_constants[:self.own_count]
        found = []
        for i in range(self.own_count):
            row = &self.kept[i]
            if not (<_Form>self.forms[row.form]).row.has_op:
                op = None
                last = <uint64_t>-1
            elif row.value - row.value_in_op != last:
                last = row.value - row.value_in_op
                op = self.kept_op(i)
            found.append(self.kept_constant(i, op))
        return found

    @property
    def untyped(self):
        """The numbers of constants that state no type of their own: elements of lists and tuples."""
        cdef uint64_t i
        if self.kept == NULL:
            self.make_lists()
            return [row for row, c in enumerate(self.made_constants) if c.mil_code == 0 and c.storage != NAME]
        if all((<_Form>form).row.mil_code != 0 or (<_Form>form).row.storage in (0, NAME) for form in self.forms):
            return []
        return [i for i in range(self.kept_count) if (<_Form>self.forms[self.kept[i].form]).row.mil_code == 0
                and (<_Form>self.forms[self.kept[i].form]).row.storage != NAME]

    def constant(self, Py_ssize_t row):
        """Return one Constant by its number in Program order; those that are only parts come last."""
        if row < 0 or <uint64_t>row >= self.rows.entry_count:
            raise IndexError(row)
        if self.kept == NULL:
            self.make_lists()
            return self.made_constants[row]
        return self.kept_constant(row, self.kept_op(row) if (<_Form>self.forms[self.kept[row].form]).row.has_op else None)

    def columns(self, numbers not None, Chains chains, bint has_places):
        """Return the kinds and places of rows, by number.

        Args:
            chains: of constexpr operations, whose outputs have the numbers after those of constants; or None.
            has_places: offsets in the scanned buffer mean something.

        Returns:
            kinds: rows of equal kinds are alike in all but name and offset; None where a row has to be looked at.
            offsets: of records, and of immediates if `has_places`; else None.
        """
        cdef uint64_t number
        cdef C.mb_kept_row *row
        cdef _Form form
        cdef list kinds = [], offsets = []
        cdef bint has_bytes = self.buffer is not None
        for number in numbers:
            kind = offset = None
            if self.kept == NULL:
                pass
            elif number >= self.kept_count:
                if chains is None or number - self.kept_count >= self.kept_op_count:
                    raise IndexError(number)
                kind = chains.kind(number - self.kept_count, has_bytes)
            else:
                row = &self.kept[number]
                form = <_Form>self.forms[row.form]
                if form.has_size:
                    kind = row.form
                if form.row.storage == BLOB:
                    offset = row.blob_offset
                elif has_places:
                    offset = row.value + row.payload
            kinds.append(kind)
            offsets.append(offset)
        return kinds, offsets

    def row_of(self, Constant constant not None):
        """Return the number of a Constant, or -1: it comes from another scan."""
        return <int64_t>constant._row if constant._token is self.token else -1

    cdef Op chain_op(self, uint64_t number):
        """Make an output of a constexpr operation by its number."""
        cdef C.mb_kept_op *row
        cdef _Form form
        cdef C.mb_span name
        cdef Op op
        if number >= self.kept_op_count:
            raise FormatError("names of all constants: expected them as counted before, got others")
        row = &self.kept_ops[number]
        form = <_Form>self.forms[row.form]
        op = self.op_of(form, C.mb_name_of(&self.base.rows, self.kept_count + number))
        op.block, op.index = row.block, row.index
        op._message.offset, op._message.nbytes = row.message, row.nbytes
        return op

    cdef Op kept_op(self, uint64_t i):
        cdef C.mb_kept_row *row = &self.kept[i]
        cdef _Form form = <_Form>self.forms[row.form]
        cdef Op op
        if form.row.is_chain:
            return self.chain_op(row.index)
        op = self.op_of(form, C.mb_name_of(&self.base.rows, i))
        op.block, op.index = row.block, row.index
        op._message.offset, op._message.nbytes = row.value - row.value_in_op, row.op_nbytes
        return op

    cdef Op op_of(self, _Form form, C.mb_span name):
        """Make the operation of a row from its form and from the row's name, which has the operation's own in it."""
        cdef Op op = Op.__new__(Op)
        if <uint64_t>form.row.head_nbytes + form.row.tail_nbytes > name.nbytes:
            raise FormatError("names of all constants: expected them as counted before, got others")
        name.offset += form.row.head_nbytes
        name.nbytes -= <uint64_t>form.row.head_nbytes + form.row.tail_nbytes
        op._origin, op.type, op.shape = self.origin, form.type, form.op_shape
        try:
            op.name = PyUnicode_DecodeUTF8(<const char *>self.base.rows.bytes + name.offset, <Py_ssize_t>name.nbytes, NULL)
        except UnicodeDecodeError:  # cut elsewhere than it was put together
            raise FormatError("names of all constants: expected them as counted before, got others") from None
        op.output_count, op.mil_code = form.row.output_count, form.row.op_mil_code
        return op

    cdef Constant kept_constant(self, uint64_t i, Op op):
        cdef C.mb_kept_row *row = &self.kept[i]
        cdef _Form form = <_Form>self.forms[row.form]
        cdef Constant made = Constant.__new__(Constant)
        made._origin, made._token, made._row, made.op = self.origin, self.token, <uint32_t>i, op
        made._value.offset, made._value.nbytes = row.value, row.value_nbytes
        made._payload.offset, made._payload.nbytes = row.value + row.payload, row.payload_nbytes
        made.steps, made.key, made.text, made.shape = form.steps, form.key, form.text, form.shape
        made._binding, made._binding_count = form.row.binding, form.row.binding_count
        made.blob_offset, made.count, made.mil_code = row.blob_offset, form.row.count, form.row.mil_code
        if form.row.storage == NAME:
            made.blob_offset = 0
            try:
                made.text = PyUnicode_DecodeUTF8(<const char *>self.kept_texts + row.blob_offset,
                                                 <Py_ssize_t>row.payload_nbytes, NULL)
            except UnicodeDecodeError:
                raise FormatError("names of all constants: expected them as counted before, got others") from None
        made.owner, made.storage = form.row.owner, form.row.storage
        made.block = -1 if row.block == C.MB_NONE else <int64_t>row.block
        made.function = -1 if form.row.function == C.MB_NONE else <int64_t>form.row.function
        return made

    cdef int make_lists(self) except -1:
        """Make an object of each row, once: `made_ops` and `made_constants`."""
        cdef C.mb_scan *s = &self.rows
        cdef Buffer buffer = self.buffer
        cdef Op op
        cdef Constant row
        cdef C.mb_op *o
        cdef C.mb_entry *t
        cdef uint64_t i
        cdef uint32_t k
        cdef uint64_t last_offset = 0, last_nbytes = 0, key_offset = 0, key_nbytes = 0
        cdef str last = "", key = ""
        cdef list ops = [], constants = []
        if self.made_constants is not None:
            return 0
        self.require_rows()
        for i in range(s.op_count):
            o = &s.ops[i]
            op = Op.__new__(Op)
            op._origin = self.origin
            op.name = _text(buffer, o.name.offset, o.name.nbytes)
            if o.type.nbytes != last_nbytes or memcmp(buffer.data + o.type.offset, buffer.data + last_offset, last_nbytes):
                last_offset, last_nbytes = o.type.offset, o.type.nbytes
                last = _text(buffer, last_offset, last_nbytes)
            op.type = last  # nearly always "const", as in the operation before: one str for a run of equal ones
            op.block, op.index, op.output_count, op.mil_code = o.block, o.index, o.output_count, o.mil_code
            op.shape = _shape(s.numbers + o.dims, o.rank) if o.mil_code else None
            op._message = o.message
            ops.append(op)
        last_offset, last_nbytes, last = 0, 0, ""
        for i in range(s.entry_count):
            t = &s.entries[i]
            row = Constant.__new__(Constant)
            row._origin, row._token, row._row = self.origin, self.token, <uint32_t>i
            row._value, row._payload = t.value, t.payload
            if t.key.offset != key_offset or t.key.nbytes != key_nbytes:  # the elements of one list share theirs
                key_offset, key_nbytes = t.key.offset, t.key.nbytes
                key = _text(buffer, key_offset, key_nbytes)
            row.key = key
            if t.storage != IMMEDIATE:
                # Nearly every weight names the same file: one str for a run of equal names.
                if (t.payload.nbytes != last_nbytes or
                        memcmp(buffer.data + t.payload.offset, buffer.data + last_offset, last_nbytes)):
                    last_offset, last_nbytes = t.payload.offset, t.payload.nbytes
                    last = _text(buffer, last_offset, last_nbytes)
                row.text = last
            row.op = <Op>ops[t.op] if t.op != C.MB_NONE else None
            row.shape = _shape(s.numbers + t.dims, t.rank) if t.mil_code else None
            row.steps = ()
            if t.step_count:
                row.steps = tuple([(s.numbers[t.steps + k] >> 2, s.numbers[t.steps + k] & 3) for k in range(t.step_count)])
            row._binding, row._binding_count = t.binding, t.binding_count
            row.blob_offset, row.count, row.mil_code = t.blob_offset, t.count, t.mil_code
            row.owner, row.storage = t.owner, t.storage
            row.block = -1 if t.block == C.MB_NONE else <int64_t>t.block
            row.function = -1 if t.function == C.MB_NONE else <int64_t>t.function
            constants.append(row)
        self.made_ops, self.made_constants = ops, constants
        return 0


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
        flags: SCAN_ALL for every tensor constant, else the weights (see program.h); SCAN_PLAIN for bytes that protobuf
            itself wrote.

    Returns:
        Scan, or None if the Program must be rewritten in plain form first (split messages, repeated map keys).

    Raises:
        FormatError: with the byte offset and the path inside the Program.
    """
    cdef Scan scan
    cdef C.mb_scan s
    cdef C.mb_error e
    cdef C.mb_status status
    cdef C.mb_span program
    cdef void *memory
    # Room for the rows of most Programs; else a second pass with the exact counts. The unused part is never touched: it
    # takes address space, not memory, three times that of the Program at most.
    cdef uint64_t guess = min(max(nbytes // 96, <uint64_t>1024), <uint64_t>1 << 20)
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
                scan = _scan_of(buffer, &s)
                scan.memory, memory = memory, NULL
                return scan
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


cdef Scan _scan_of(Buffer buffer, C.mb_scan *s):
    """Make the scan of tables that are filled; the caller gives it their memory."""
    cdef Scan scan = Scan.__new__(Scan)
    cdef uint64_t i
    cdef str last = ""
    cdef list names = []
    if buffer.origin is None:
        buffer.origin = object()
    scan.buffer, scan.origin, scan.version, scan.rows = buffer, buffer.origin, s.version, s[0]
    scan.rows.error = NULL
    scan.token = object()
    scan.own_count, scan.own_op_count = s.entry_count, s.op_count
    scan.functions = [(_text(buffer, s.functions[i].name.offset, s.functions[i].name.nbytes),
                       _text(buffer, s.functions[i].opset.offset, s.functions[i].opset.nbytes),
                       (s.functions[i].message.offset, s.functions[i].message.nbytes)) for i in range(s.function_count)]
    for i in range(s.block_count):  # the blocks of one operation share its name
        if i == 0 or s.blocks[i].name.offset != s.blocks[i - 1].name.offset:
            last = _text(buffer, s.blocks[i].name.offset, s.blocks[i].name.nbytes)
        names.append(last)
    scan.blocks = [(names[i], s.blocks[i].function,
                    -1 if s.blocks[i].parent == C.MB_NONE else <int64_t>s.blocks[i].parent, s.blocks[i].number,
                    s.blocks[i].index) for i in range(s.block_count)]
    for i in range(s.op_count):
        if C.mb_op_is_constexpr(s, &s.ops[i]):
            scan.has_constexpr = True
            break
    return scan
