# Part of _codec.pyx: what the constexpr operations of a scan read, and which of them compute weights.

CHAINS_SMALL, CHAINS_USES, CHAINS_PARTS, CHAINS_LONG, CHAINS_CIRCLE = (
    <int>C.MB_CHAINS_SMALL, <int>C.MB_CHAINS_USES, <int>C.MB_CHAINS_PARTS, <int>C.MB_CHAINS_LONG, <int>C.MB_CHAINS_CIRCLE)
MAX_CHAIN, MAX_PARTS = <int>C.MB_MAX_CHAIN, <int>C.MB_MAX_PARTS


cdef enum:
    _MOST_ALIKE = 16  # parts of operations that are compared, and bytes of a number: no tool writes more


cdef class Chains:
    """The outputs of a scan's constexpr operations, by number, in Program order: see chains.h.

    `advance` until it returns 0. From then on there are numbers: first those of the scan's constants, the ones that are only
    parts among them (`Scan.total`), then those of these outputs.
    """
    cdef Scan scan, small
    cdef C.mb_chains rows
    cdef bint is_resolved, is_checked
    cdef readonly bint is_done

    def __cinit__(self, Scan scan not None):
        cdef C.mb_scan *s = &scan.rows
        cdef C.mb_chains *rows = &self.rows
        cdef uint64_t i
        self.scan = scan
        scan.require_rows()
        for i in range(s.op_count):
            rows.op_count += C.mb_op_is_constexpr(s, &s.ops[i])
        rows.scan = s
        rows.ops = <C.mb_chain_op *>malloc((s.op_count + 1) * sizeof(C.mb_chain_op))
        rows.numbers = <uint32_t *>malloc((s.op_count + 1) * sizeof(uint32_t))
        rows.targets = <uint32_t *>malloc((s.entry_count + 1) * sizeof(uint32_t))
        rows.marks = <uint8_t *>malloc(s.entry_count + 1)
        if rows.ops == NULL or rows.numbers == NULL or rows.targets == NULL or rows.marks == NULL:
            raise MemoryError
        rows.op_count = 0
        with nogil:
            C.mb_chains_begin(rows)
        if rows.name_count > 0:
            rows.small_rows = <uint32_t *>malloc(rows.name_count * sizeof(uint32_t))
            rows.small_marks = <uint8_t *>malloc(rows.name_count)
            if rows.small_rows == NULL or rows.small_marks == NULL:
                raise MemoryError
            self.make_room(s.op_count)
            with nogil:
                C.mb_chains_define(rows, &_key)

    def __dealloc__(self):
        self.forget()
        free(self.rows.ops)
        free(self.rows.numbers)
        free(self.rows.targets)
        free(self.rows.marks)

    def __len__(self):
        return <Py_ssize_t>self.rows.op_count

    @property
    def nbytes(self):
        """The memory that it takes, once done."""
        cdef uint64_t names = self.scan.rows.entry_count * sizeof(uint32_t) if self.rows.targets != NULL else 0
        return self.rows.op_count * sizeof(C.mb_chain_op) + names + self.scan.rows.entry_count

    cdef void forget(self) noexcept:
        """Free what only `advance` needs."""
        free(self.rows.small_rows)
        free(self.rows.small_marks)
        free(self.rows.definitions)
        free(self.rows.slots)
        self.rows.small_rows, self.rows.small_marks, self.rows.definitions, self.rows.slots = NULL, NULL, NULL, NULL

    cdef int make_room(self, uint64_t count) except -1:
        """Make room for `count` definitions, and slots of zeros."""
        cdef uint64_t slot_count = 4
        cdef void *larger = realloc(self.rows.definitions, (count + 1) * sizeof(C.mb_definition))
        if larger == NULL:
            raise MemoryError
        self.rows.definitions, self.rows.definition_capacity = <C.mb_definition *>larger, count
        while slot_count < 2 * count + 2:
            slot_count *= 2
        free(self.rows.slots)
        self.rows.slots = <uint32_t *>calloc(slot_count, sizeof(uint32_t))
        if self.rows.slots == NULL:
            raise MemoryError
        self.rows.slot_count = slot_count
        return 0

    # ------------------------------------------------------------------------------------------------------ how it is found

    def advance(self):
        """Find parts and weights.

        Returns:
            0: done. CHAINS_SMALL or CHAINS_USES: call `add_small` or `add_uses`, and this again. CHAINS_PARTS, CHAINS_LONG or
            CHAINS_CIRCLE: the Program is refused because of the operation `stopped`.
        """
        cdef int status = C.MB_CHAINS_DONE
        cdef C.mb_chains *rows = &self.rows
        if self.is_done:
            return 0
        self.scan.require_rows()
        if not self.is_resolved:
            with nogil:
                status = C.mb_chains_resolve(rows, &_key)
            if status != C.MB_CHAINS_DONE:
                return status
            self.is_resolved = True
        if not self.is_checked:
            status = self.check()
            if status != C.MB_CHAINS_DONE:
                return status
            self.is_checked = True
        with nogil:
            status = C.mb_chains_ends(rows, &_key)
        if status == C.MB_CHAINS_DONE:
            self.finish()
        return status

    def add_small(self, Scan small not None):
        """Take the const operations of a scan of every constant."""
        small.require_rows()
        self.make_room(self.rows.definition_capacity + small.rows.op_count)
        self.small = small
        with nogil:
            C.mb_chains_add_small(&self.rows, &small.rows, &_key)

    def add_uses(self, Graph graph not None):
        """Take every use of a name, from the graph of the same bytes."""
        if self.rows.slots == NULL:  # nothing was looked up yet
            self.make_room(self.scan.rows.op_count)
            with nogil:
                C.mb_chains_define(&self.rows, &_key)
        with nogil:
            C.mb_chains_add_uses(&self.rows, &graph.rows, &_key)

    @property
    def stopped(self):
        """The output that a refusal is about: an Op, the last one of its operation."""
        cdef uint64_t number = self.rows.stopped
        while number + 1 < self.rows.op_count and self.rows.ops[number + 1].message == self.rows.ops[number].message:
            number += 1
        return self.op(number)

    cdef int check(self) except -1:
        cdef C.mb_chain_links links
        cdef uint64_t count = self.rows.op_count, names = self.rows.name_count
        cdef uint32_t *memory = <uint32_t *>calloc(5 * count + 2 * names + 8, sizeof(uint32_t))
        cdef int status
        if memory == NULL:
            raise MemoryError
        links.seen, links.waiting, links.ready = memory, memory + count, memory + 2 * count
        links.reads_from, links.readers_from = memory + 3 * count, memory + 4 * count + 1
        links.reads, links.readers = memory + 5 * count + 4, memory + 5 * count + names + 5
        with nogil:
            status = C.mb_chains_check(&self.rows, &links)
        free(memory)
        return status

    cdef int finish(self) except -1:
        """Add the constants that are only parts to those of the scan, and free the tables of the search."""
        cdef uint64_t own = self.scan.rows.entry_count, total = own + self.rows.small_count
        cdef void *marks
        cdef void *targets
        cdef void *numbers
        cdef void *smaller
        if self.rows.small_count > 0:
            _extend(self.scan, self.small, self.rows.small_rows, self.rows.small_count)
            marks, targets = realloc(self.rows.marks, total), realloc(self.rows.targets, total * sizeof(uint32_t))
            numbers = realloc(self.rows.numbers, self.scan.rows.op_count * sizeof(uint32_t))
            if marks != NULL:
                self.rows.marks = <uint8_t *>marks
            if targets != NULL:
                self.rows.targets = <uint32_t *>targets
            if numbers != NULL:
                self.rows.numbers = <uint32_t *>numbers
            if marks == NULL or targets == NULL or numbers == NULL:
                raise MemoryError
            memcpy(self.rows.marks + own, self.rows.small_marks, self.rows.small_count)
            memset(self.rows.targets + own, 0xFF, self.rows.small_count * sizeof(uint32_t))  # MB_NONE
            memset(self.rows.numbers + self.scan.own_op_count, 0xFF, self.rows.small_count * sizeof(uint32_t))
        if self.rows.name_count == 0:
            free(self.rows.targets)
            self.rows.targets = NULL
        smaller = realloc(self.rows.ops, (self.rows.op_count + 1) * sizeof(C.mb_chain_op))
        if smaller != NULL:
            self.rows.ops = <C.mb_chain_op *>smaller
        self.small = None
        self.rows.small = NULL
        self.forget()
        self.is_done = True
        return 0

    # ---------------------------------------------------------------------------------------------------------- what it is

    def op(self, Py_ssize_t number):
        """Return an output as an Op."""
        if number < 0 or <uint64_t>number >= self.rows.op_count:
            raise IndexError(number)
        if self.scan.kept == NULL:
            self.scan.make_lists()
            return self.scan.made_ops[self.rows.ops[number].row]
        return self.scan.chain_op(number)

    def output(self, Py_ssize_t number):
        """Return which of its operation's outputs it is, and the number of the first."""
        if number < 0 or <uint64_t>number >= self.rows.op_count:
            raise IndexError(number)
        return number - <Py_ssize_t>self.rows.ops[number].message, self.rows.ops[number].message

    def parts(self, Py_ssize_t number):
        """Return the parts of an operation by the number of an output: [(name, Constant or None, number of an output or -1)].

        Its own values come first, then its inputs. Of two of one name the last is taken.
        """
        cdef uint64_t i, first, count
        cdef uint32_t target
        cdef list own = [], read = []
        if not self.is_done:
            raise ValueError("parts: expected a finished search, got one that goes on")
        if number < 0 or <uint64_t>number >= self.rows.op_count:
            raise IndexError(number)
        first, count = self.rows.ops[number].first, self.rows.ops[number].count
        for i in range(first, first + count):
            target = C.MB_NONE if self.rows.targets == NULL else self.rows.targets[i]
            if target == C.MB_NONE:
                if self.rows.marks[i] & C.MB_MARK_PART:
                    constant = self.scan.constant(i)
                    own.append((_part_name(constant), constant, -1))
            elif target & C.MB_TARGET_OP:
                read.append((_part_name(self.scan.constant(i)), None, target & ~<uint32_t>C.MB_TARGET_OP))
            else:
                read.append((_part_name(self.scan.constant(i)), self.scan.constant(target), -1))
        return own + read

    def part_numbers(self, Py_ssize_t number):
        """Return the parts of an operation as `parts` does, as numbers of constants and, beyond them, of outputs."""
        cdef uint64_t total = self.scan.rows.entry_count
        found = {}
        for name, constant, inner in self.parts(number):
            found[name] = (<Constant>constant)._row if inner < 0 else total + <uint64_t>inner
        return list(found.values())

    cdef object kind(self, uint64_t number, bint has_bytes):
        """What an output has in common with others that are alike in all but name and place; None where values may decide.

        These are the forms of the operation and of its parts, which of the parts are one record, and the values of numbers.
        """
        cdef C.mb_chain_op *op = &self.rows.ops[number]
        cdef C.mb_kept_row *row
        cdef C.mb_kept_row *other
        cdef _Form form
        cdef uint64_t i, k
        found = [self.scan.kept_ops[number].form, number - op.message]
        if op.count > _MOST_ALIKE:
            return None
        for i in range(op.first, <uint64_t>op.first + op.count):
            row = &self.scan.kept[i]
            form = <_Form>self.scan.forms[row.form]
            if form.row.storage == NAME or not form.has_size or form.row.step_count:
                return None
            found.append(row.form)
            if form.row.storage == BLOB:
                for k in range(op.first, i):  # before it
                    other = &self.scan.kept[k]
                    if (<_Form>self.scan.forms[other.form]).text == form.text and other.blob_offset == row.blob_offset:
                        break
                else:
                    k = i
                found.append(k - op.first)
            elif form.row.count == 1:
                if not has_bytes or row.payload_nbytes > _MOST_ALIKE:
                    return None
                found.append(bytes(self.scan.buffer.data[row.value + row.payload:row.value + row.payload + row.payload_nbytes]))
        return tuple(found)

    def is_part(self, int64_t number):
        """Whether a constant is a part of a compressed weight."""
        return 0 <= number < <int64_t>self.scan.rows.entry_count and self.rows.marks[number] & C.MB_MARK_PART != 0

    def is_shared(self, int64_t number):
        """Whether a constant is a part, and also a weight because other operations read it."""
        return 0 <= number < <int64_t>self.scan.rows.entry_count and self.rows.marks[number] & C.MB_MARK_SHARED != 0

    def is_listed(self, uint64_t number, bint is_stored):
        """Whether a number is that of a weight, or of a stored constant."""
        cdef uint64_t total = self.scan.rows.entry_count
        if number >= total:
            return not is_stored and self.rows.ops[number - total].flags & C.MB_CHAIN_END != 0
        return is_stored or self.rows.marks[number] & C.MB_MARK_PART == 0 or self.rows.marks[number] & C.MB_MARK_SHARED != 0

    @property
    def ends(self):
        """The numbers of the outputs that are weights, among outputs."""
        cdef uint64_t k
        return [k for k in range(self.rows.op_count) if self.rows.ops[k].flags & C.MB_CHAIN_END]

    @property
    def is_typed(self):
        """Whether each weight is a tensor by its type."""
        cdef uint64_t k
        return all(self.scan.is_tensor(k, self.rows.ops[k].row) for k in range(self.rows.op_count)
                   if self.rows.ops[k].flags & C.MB_CHAIN_END)

    def listed(self, bint is_stored):
        """Return the numbers of listed constants and weights, in Program order: uint32.

        A weight has the place of its operation's constants.
        """
        cdef uint64_t total = self.scan.rows.entry_count, i, k = 0, count = 0
        cdef uint32_t *found = <uint32_t *>malloc((total + self.rows.op_count + 1) * sizeof(uint32_t))
        if found == NULL:
            raise MemoryError
        try:
            for i in range(total):
                while not is_stored and k < self.rows.op_count and (self.rows.ops[k].first <= i or self.rows.ops[k].count == 0):
                    if self.rows.ops[k].count > 0 and self.rows.ops[k].flags & C.MB_CHAIN_END:
                        found[count] = <uint32_t>(total + k)
                        count += 1
                    k += 1
                if not self.scan.is_name(i) and self.is_listed(i, is_stored):
                    found[count] = <uint32_t>i
                    count += 1
            for k in range(0 if is_stored else self.rows.op_count):
                if self.rows.ops[k].count == 0 and self.rows.ops[k].flags & C.MB_CHAIN_END:
                    found[count] = <uint32_t>(total + k)
                    count += 1
            return memoryview(PyBytes_FromStringAndSize(<const char *>found, <Py_ssize_t>(count * sizeof(uint32_t)))).cast("I")
        finally:
            free(found)


cdef str _part_name(Constant constant):
    """The name of a part: its parameter, with "[1]" where it has several bindings."""
    return constant.key if constant._binding_count == 1 else f"{constant.key}[{constant._binding}]"


cdef int _extend(Scan scan, Scan other, const uint32_t *rows, uint64_t count) except -1:
    """Add constants of another scan of the same bytes after those of a scan."""
    cdef C.mb_scan *s = &scan.rows
    cdef C.mb_scan *o = &other.rows
    cdef C.mb_scan new = s[0]
    cdef C.mb_entry *entry
    cdef C.mb_op *op
    cdef uint64_t i, numbers = s.number_count
    cdef void *memory
    for i in range(count):
        entry = &o.entries[rows[i]]
        op = &o.ops[entry.op]
        numbers += entry.step_count + (entry.rank if entry.mil_code else 0) + (op.rank if op.mil_code else 0)
    memory = malloc(s.function_count * sizeof(C.mb_function) + s.block_count * sizeof(C.mb_block) +
                    (s.op_count + count) * sizeof(C.mb_op) + (s.entry_count + count) * sizeof(C.mb_entry) + numbers * 8 + 8)
    if memory == NULL:
        raise MemoryError
    new.functions = <C.mb_function *>memory
    new.blocks = <C.mb_block *>(new.functions + s.function_count)
    new.ops = <C.mb_op *>(new.blocks + s.block_count)
    new.entries = <C.mb_entry *>(new.ops + s.op_count + count)
    new.numbers = <uint64_t *>(new.entries + s.entry_count + count)
    memcpy(new.functions, s.functions, s.function_count * sizeof(C.mb_function))
    memcpy(new.blocks, s.blocks, s.block_count * sizeof(C.mb_block))
    memcpy(new.ops, s.ops, s.op_count * sizeof(C.mb_op))
    memcpy(new.entries, s.entries, s.entry_count * sizeof(C.mb_entry))
    memcpy(new.numbers, s.numbers, s.number_count * 8)
    for i in range(count):
        entry, op = &new.entries[new.entry_count], &new.ops[new.op_count]
        entry[0] = o.entries[rows[i]]
        op[0] = o.ops[entry.op]
        entry.op = <uint32_t>new.op_count
        entry.dims = _copy_numbers(&new, o, entry.dims, entry.rank if entry.mil_code else 0)
        entry.steps = _copy_numbers(&new, o, entry.steps, entry.step_count)
        op.dims = _copy_numbers(&new, o, op.dims, op.rank if op.mil_code else 0)
        new.entry_count += 1
        new.op_count += 1
    free(scan.memory)
    scan.memory, scan.rows = memory, new
    scan.made_ops = scan.made_constants = scan.base = None
    return 0


cdef uint32_t _copy_numbers(C.mb_scan *to, C.mb_scan *source, uint32_t first, uint32_t count):
    """Append numbers of another scan; return where they are."""
    if count:
        memcpy(to.numbers + to.number_count, source.numbers + first, count * 8)
    to.number_count += count
    return <uint32_t>(to.number_count - count)
