# Part of _codec.pyx: the table of a Program's functions, blocks and operations, under program/view.py.


@cython.no_gc  # text and tuples of text: no cycles
cdef class Statement:
    """One operation as text, without objects of a view.

    type: of the operation.    outputs: their names.    inputs: parameter -> the names that it reads, None for a value.
    """
    cdef readonly str type
    cdef readonly tuple outputs
    cdef readonly object inputs


cdef enum:
    FACTS_VALUE_NBYTES = 256  # axes, sizes, strides: what the shapes of outputs depend on


cdef object _NO_INPUTS = _MappingProxyType({})  # most operations are constants: one for all of them


cdef class Graph:
    """A Program's functions, blocks and operations as rows in one block of memory: see graph.h. Made by graph_program.

    Names are read from the Program's bytes when they are asked for. `release` releases these bytes.
    """
    cdef Buffer buffer
    cdef void *memory
    cdef C.mb_graph rows
    cdef list words            # short texts seen before: types of operations, keys of inputs
    cdef uint32_t *definers    # of mb_scopes, once `resolve` was called; the other two are in the same memory
    cdef uint32_t *readers
    cdef uint32_t *readers_from

    def __dealloc__(self):
        free(self.memory)
        free(self.definers)

    def release(self):
        """Release the Program's bytes; every method raises ValueError from then on."""
        self.buffer = None

    cdef Buffer held(self):
        cdef Buffer buffer = self.buffer
        if buffer is None:
            raise ValueError("I/O operation on closed model")
        return buffer

    cdef str text(self, C.mb_span span):
        return _text(self.held(), span.offset, span.nbytes)

    cdef str word(self, C.mb_span span):
        """The text of a span that probably occurs again: one str for all of them."""
        cdef Buffer buffer = self.held()
        cdef const uint8_t *data = buffer.data + span.offset
        cdef Py_ssize_t nbytes
        cdef const char *known
        cdef str found
        cdef Py_ssize_t slot
        if span.nbytes == 0:
            return ""
        slot = (span.nbytes * 37 + data[0] * 5 + data[span.nbytes - 1] * 11 + data[span.nbytes >> 1]) & 127
        found = self.words[slot]
        known = PyUnicode_AsUTF8AndSize(found, &nbytes)
        if <uint64_t>nbytes == span.nbytes and memcmp(known, data, span.nbytes) == 0:
            return found
        found = _text(buffer, span.offset, span.nbytes)
        if span.nbytes <= 64:
            self.words[slot] = found
        return found

    @property
    def version(self):
        return <int64_t>self.rows.scan.version

    @property
    def counts(self):
        """Numbers of functions, blocks and operations."""
        return self.rows.function_count, self.rows.block_count, self.rows.operation_count

    @property
    def nbytes(self):
        """The memory that the table takes, without names."""
        cdef C.mb_graph *g = &self.rows
        return (g.function_count * sizeof(C.mb_graph_function) + g.block_count * sizeof(C.mb_graph_block) +
                g.operation_count * sizeof(C.mb_graph_operation) + g.name_count * sizeof(C.mb_graph_name) +
                g.argument_count * sizeof(C.mb_graph_argument) + g.binding_count * sizeof(C.mb_graph_binding))

    def function(self, uint32_t row):
        """Return (name, opset, (offset, nbytes), rows of its blocks, (first, count) of its inputs' names)."""
        cdef C.mb_graph_function *f
        cdef list blocks = []
        cdef uint32_t block
        if row >= self.rows.function_count:
            raise IndexError(row)
        f = &self.rows.functions[row]
        block = f.blocks
        while block < f.block_end:
            blocks.append(block)
            block = self.rows.blocks[block].end
        return self.text(f.name), self.text(f.opset), (f.message.offset, f.message.nbytes), blocks, (f.inputs, f.input_count)

    def block(self, uint32_t row):
        """Return (name, (offset, nbytes), function, operation or -1, number, (first, count) of inputs, of outputs)."""
        cdef C.mb_graph_block *b
        cdef int64_t operation
        if row >= self.rows.block_count:
            raise IndexError(row)
        b = &self.rows.blocks[row]
        operation = -1 if b.operation == C.MB_NONE else <int64_t>b.operation
        return (self.word(b.name), (b.message.offset, b.message.nbytes), b.function, operation, b.number,
                (b.inputs, b.input_count), (b.outputs, b.output_count))

    def names(self, uint32_t first, uint32_t count):
        """Return [(name, offset and nbytes of its type)]; offset 0 without a type."""
        cdef list found = []
        cdef uint32_t i
        if <uint64_t>first + count > self.rows.name_count:
            raise IndexError(first)
        for i in range(first, first + count):
            found.append((self.text(self.rows.names[i].name), self.rows.names[i].type.offset, self.rows.names[i].type.nbytes))
        return found

    def outputs(self, uint32_t block):
        """Return the rows of `names` of what a block's operations yield, in their order, nested blocks left out."""
        cdef uint32_t row
        cdef list found = []
        if block >= self.rows.block_count:
            raise IndexError(block)
        row = self.rows.blocks[block].operations
        while row < self.rows.blocks[block].operation_end:
            found += self.names(self.rows.operations[row].outputs, self.rows.operations[row].output_count)
            row = self.rows.operations[row].end
        return found

    def owner(self, uint32_t name):
        """Return (GRAPH_OUTPUT | GRAPH_INPUT | GRAPH_PARAMETER, row of the operation, block or function) of a row of names."""
        if name >= self.rows.name_count:
            raise IndexError(name)
        return self.rows.names[name].kind, self.rows.names[name].owner

    def operation(self, uint32_t block, uint32_t index):
        """Return the row of an operation by its place in a block."""
        cdef C.mb_graph_block *b
        cdef uint32_t row
        if block >= self.rows.block_count:
            raise IndexError(block)
        b = &self.rows.blocks[block]
        row = b.operations
        while row < b.operation_end:
            if self.rows.operations[row].index == index:
                return row
            row = self.rows.operations[row].end
        raise IndexError(index)

    def operation_at(self, uint64_t offset):
        """Return the row of the operation whose message begins at an offset, or -1; rows are in the order of messages."""
        cdef uint64_t low = 0, high = self.rows.operation_count, middle
        while low < high:
            middle = (low + high) // 2
            if self.rows.operations[middle].message.offset < offset:
                low = middle + 1
            else:
                high = middle
        found = low < self.rows.operation_count and self.rows.operations[low].message.offset == offset
        return <int64_t>low if found else -1

    def count(self, uint32_t block):
        """Return how many operations a block has, those in nested blocks left out."""
        cdef uint32_t row, found = 0
        if block >= self.rows.block_count:
            raise IndexError(block)
        row = self.rows.blocks[block].operations
        while row < self.rows.blocks[block].operation_end:
            row = self.rows.operations[row].end
            found += 1
        return found

    def statements(self, uint32_t block, bint nested=False):
        """Return [(type, names of outputs, {parameter: names that it reads, None for values})] of a block's operations."""
        cdef Buffer buffer = self.held()
        cdef C.mb_graph_operation *o
        cdef C.mb_graph_argument *a
        cdef C.mb_graph_binding *b
        cdef C.mb_graph_name *n
        cdef uint32_t row, end, k, i
        cdef list found = []
        cdef Statement statement
        if block >= self.rows.block_count:
            raise IndexError(block)
        row, end = self.rows.blocks[block].operations, self.rows.blocks[block].operation_end
        while row < end:
            o = &self.rows.operations[row]
            n = self.rows.names + o.outputs
            if o.output_count == 1:
                outputs = (_text(buffer, n.name.offset, n.name.nbytes),)
            else:
                outputs = tuple([_text(buffer, n[i].name.offset, n[i].name.nbytes) for i in range(o.output_count)])
            inputs = _NO_INPUTS if o.argument_count == 0 else {}
            for k in range(o.arguments, o.arguments + o.argument_count):
                a = self.rows.arguments + k
                b = self.rows.bindings + a.bindings
                if a.binding_count == 1:
                    names = (None if b.is_value else _text(buffer, b.span.offset, b.span.nbytes),)
                else:
                    names = tuple([None if b[i].is_value else _text(buffer, b[i].span.offset, b[i].span.nbytes)
                                   for i in range(a.binding_count)])
                inputs[self.word(a.key)] = names
            statement = <Statement>Statement.__new__(Statement)
            statement.type, statement.outputs, statement.inputs = self.word(o.type), outputs, inputs
            found.append(statement)
            row = row + 1 if nested else o.end
        return found

    def facts(self, uint32_t row):
        """Return the fields of an operation that the rules of the specification compare, read in one pass over it.

        Returns:
            (type, outputs, inputs, attributes, doubtful): outputs are (name, its type's bytes or None); inputs
            (key, its bindings: a name, or (bytes of the value's type, of all of it)); attributes (key, bytes of the
            value's type, of all of it), None where protobuf has to read them; doubtful (is attribute, key, number of
            the binding, offset, nbytes) of each value that is not plainly sound (see sound.h). Types that a value does
            not state are b"", and so is all of a value that is not plainly sound, or longer than FACTS_VALUE_NBYTES.
        """
        cdef Buffer buffer = self.held()
        cdef C.mb_graph_operation *o
        cdef C.mb_graph_argument *a
        cdef C.mb_graph_binding *b
        cdef C.mb_graph_name *n
        cdef C.mb_cursor message
        cdef C.mb_wire wire
        cdef C.mb_error e
        cdef C.mb_span entry, key, type_at, value
        cdef bint is_sound
        cdef uint32_t k, i
        cdef list outputs = [], inputs = [], attributes = [], doubtful = [], bound
        cdef str word
        if row >= self.rows.operation_count:
            raise IndexError(row)
        o = &self.rows.operations[row]
        for i in range(o.outputs, o.outputs + o.output_count):
            n = &self.rows.names[i]
            outputs.append((self.text(n.name), self.bytes_at(n.type) if n.type.offset else None))
        for k in range(o.arguments, o.arguments + o.argument_count):
            a = &self.rows.arguments[k]
            word = self.word(a.key)
            bound = []
            for i in range(a.bindings, a.bindings + a.binding_count):
                b = &self.rows.bindings[i]
                if not b.is_value:
                    bound.append(self.text(b.span))
                    continue
                is_sound = C.mb_sound_value(buffer.data, b.span, &type_at)
                bound.append((self.bytes_at(type_at), self.small_at(b.span, is_sound)))
                if not is_sound:
                    doubtful.append((False, word, i - a.bindings, b.span.offset, b.span.nbytes))
            inputs.append((word, tuple(bound)))
        message.base, message.at = buffer.data, buffer.data + o.message.offset
        message.end = message.at + o.message.nbytes
        while message.at < message.end:
            if C.mb_read_field(&message, &wire, &e):
                raise _error(&e, buffer.name)
            if wire.number != 5:
                continue
            entry.offset, entry.nbytes = <uint64_t>(wire.data - buffer.data), wire.nbytes
            is_sound = C.mb_sound_attribute(buffer.data, entry, &key, &type_at, &value)
            if value.offset == 0:
                return self.word(o.type), outputs, inputs, None, doubtful
            word = self.word(key)
            attributes.append((word, self.bytes_at(type_at), self.small_at(value, is_sound)))
            if not is_sound:
                doubtful.append((True, word, 0, value.offset, value.nbytes))
        return self.word(o.type), outputs, inputs, attributes, doubtful

    def constant(self, uint32_t row):
        """Return (offset, nbytes) of an operation's attribute `val`; None without one, and where protobuf has to read it."""
        cdef Buffer buffer = self.held()
        cdef C.mb_cursor message
        cdef C.mb_wire wire
        cdef C.mb_error e
        cdef C.mb_span entry, key, type_at, value, found
        if row >= self.rows.operation_count:
            raise IndexError(row)
        found.offset, entry = 0, self.rows.operations[row].message
        message = C.mb_cursor_of(buffer.data, buffer.data + entry.offset, entry.nbytes)
        while message.at < message.end:
            if C.mb_read_field(&message, &wire, &e):
                raise _error(&e, buffer.name)
            if wire.number != 5:
                continue
            entry.offset, entry.nbytes = <uint64_t>(wire.data - buffer.data), wire.nbytes
            C.mb_sound_attribute(buffer.data, entry, &key, &type_at, &value)
            if value.offset == 0:
                return None
            if key.nbytes == 3 and memcmp(buffer.data + key.offset, b"val", 3) == 0:
                found = value  # of keys that come twice the last one stands
        return (found.offset, found.nbytes) if found.offset else None

    cdef bytes small_at(self, C.mb_span value, bint is_sound):
        return self.bytes_at(value) if is_sound and value.nbytes <= FACTS_VALUE_NBYTES else b""

    cdef bytes bytes_at(self, C.mb_span span):
        return PyBytes_FromStringAndSize(<const char *>self.buffer.data + span.offset, <Py_ssize_t>span.nbytes)

    def definitions(self):
        """Return {(block, name): row of names} of what operations and blocks define, {(-1 - function, name): row} of inputs.

        Where a name occurs twice in one block, the first is taken; inputs come before operations.
        """
        cdef dict found = {}
        cdef C.mb_graph_name *n
        cdef uint64_t i
        for i in range(self.rows.name_count):
            n = &self.rows.names[i]
            if n.kind == C.MB_GRAPH_INPUT:
                found.setdefault((n.owner, self.text(n.name)), i)
            elif n.kind == C.MB_GRAPH_PARAMETER:
                found.setdefault((-1 - <int64_t>n.owner, self.text(n.name)), i)
        for i in range(self.rows.name_count):
            n = &self.rows.names[i]
            if n.kind == C.MB_GRAPH_OUTPUT:
                found.setdefault((self.rows.operations[n.owner].block, self.text(n.name)), i)
        return found

    cdef int resolve(self) except -1:
        """Resolve the names that are read, once: see scopes.h."""
        cdef C.mb_scopes scopes
        cdef Buffer buffer = self.held()
        cdef uint64_t names = self.rows.name_count, reads = self.rows.binding_count + names, slot_count = 4
        cdef uint32_t *kept
        cdef uint32_t *memory
        if self.definers != NULL:
            return 0
        while slot_count <= 2 * names:
            slot_count *= 2
        kept = <uint32_t *>malloc((2 * reads + names + 2) * sizeof(uint32_t))
        memory = <uint32_t *>malloc((slot_count + 6 * names + reads + 1) * sizeof(uint32_t))
        if kept == NULL or memory == NULL:
            free(kept)
            free(memory)
            raise MemoryError
        memset(&scopes, 0, sizeof(scopes))
        scopes.graph, scopes.slot_count = &self.rows, slot_count
        scopes.definers, scopes.readers, scopes.readers_from = kept, kept + reads, kept + 2 * reads
        scopes.slots, scopes.firsts, scopes.meanings = memory, memory + slot_count, memory + slot_count + names
        scopes.blocks, scopes.hidden = scopes.meanings + names, scopes.meanings + 2 * names
        scopes.reads = scopes.hidden + 3 * names
        memset(scopes.slots, 0, slot_count * sizeof(uint32_t))
        memset(scopes.meanings, 0xFF, names * sizeof(uint32_t))  # MB_NONE
        with nogil:
            C.mb_scopes_resolve(&scopes, &_key)
        free(memory)
        if self.definers != NULL:  # by another thread
            free(kept)
            return 0
        self.readers, self.readers_from, self.definers = scopes.readers, scopes.readers_from, kept
        return 0

    def definer(self, int64_t read):
        """Return the row of names that defines a name that is read, or -1.

        Args:
            read: a row of bindings; or -1 - row of names, for an output of a block.
        """
        cdef uint64_t row = <uint64_t>read if read >= 0 else self.rows.binding_count + <uint64_t>(-1 - read)
        self.resolve()
        if row >= self.rows.binding_count + self.rows.name_count:
            raise IndexError(read)
        return -1 if self.definers[row] == C.MB_NONE else <int64_t>self.definers[row]

    def consumers(self, uint32_t first, uint32_t count):
        """Return who reads rows of names: [(row of the operation, or -1 - row of the block; key, "" for a block; name)]."""
        cdef uint32_t row, i, read
        cdef list found = []
        self.resolve()
        if <uint64_t>first + count > self.rows.name_count:
            raise IndexError(first)
        for row in range(first, first + count):
            name = None
            for i in range(self.readers_from[row], self.readers_from[row + 1]):
                name = self.text(self.rows.names[row].name) if name is None else name
                read = self.readers[i]
                owner, key = self.reader(-1 - <int64_t>(read & ~C.MB_READ_RETURN) if read & C.MB_READ_RETURN else <int64_t>read)
                found.append((owner, key, name))
        return found

    def reads(self):
        """Return every name that an operation reads or a block returns, in the order of rows.

        Returns:
            [(row of the block, type of the operation, name of its first output, key, number of the binding, name)]. An
            operation without outputs has its type for a name. For a block: (row, None, "", "", number of the output, name).
        """
        cdef C.mb_graph_operation *o
        cdef C.mb_graph_argument *a
        cdef C.mb_graph_block *b
        cdef uint32_t row, k, i
        cdef list found = []
        for row in range(self.rows.operation_count):
            o = &self.rows.operations[row]
            name = None
            for k in range(o.arguments, o.arguments + o.argument_count):
                a = &self.rows.arguments[k]
                for i in range(a.bindings, a.bindings + a.binding_count):
                    if self.rows.bindings[i].is_value:
                        continue
                    if name is None:
                        name = self.text(self.rows.names[o.outputs].name) if o.output_count else self.word(o.type)
                    found.append((o.block, self.word(o.type), name, self.word(a.key), i - a.bindings,
                                  self.text(self.rows.bindings[i].span)))
        for row in range(self.rows.block_count):
            b = &self.rows.blocks[row]
            for i in range(b.outputs, b.outputs + b.output_count):
                found.append((row, None, "", "", i - b.outputs, self.text(self.rows.names[i].name)))
        return found

    def reader(self, int64_t row):
        """Return (row of the operation, key) of a row of bindings; (-1 - row of the block, "") of a `-1 - row of names`."""
        cdef C.mb_graph_argument *a
        if row < 0:
            if <uint64_t>(-1 - row) >= self.rows.name_count:
                raise IndexError(row)
            return -1 - <int64_t>self.rows.names[-1 - row].owner, ""
        if <uint64_t>row >= self.rows.binding_count:
            raise IndexError(row)
        a = &self.rows.arguments[self.rows.bindings[row].argument]
        return a.operation, self.word(a.key)


def graph_program(Buffer buffer not None, uint64_t offset, uint64_t nbytes, uint32_t flags=0):
    """Make the table of everything in the serialized Program at [offset, offset + nbytes) but values and types.

    Args:
        flags: SCAN_PLAIN for bytes that protobuf itself wrote, else 0.

    Returns:
        Graph, or None if the Program must be rewritten in plain form first (split messages, repeated map keys).

    Raises:
        FormatError: with the byte offset and the path inside the Program.
    """
    cdef Graph graph = Graph.__new__(Graph)
    cdef C.mb_graph *g = &graph.rows
    cdef C.mb_error e
    cdef C.mb_status status
    cdef C.mb_span program
    cdef uint64_t guess = min(max(nbytes // 256, <uint64_t>1024), <uint64_t>1 << 18)
    cdef uint64_t functions = 16, blocks = 64, operations = guess, names = 2 * guess, arguments = 2 * guess, bindings = 2 * guess
    _span_check(buffer, offset, nbytes)
    program.offset, program.nbytes = offset, nbytes
    while True:
        free(graph.memory)
        graph.memory = malloc(functions * sizeof(C.mb_graph_function) + blocks * sizeof(C.mb_graph_block) +
                              operations * sizeof(C.mb_graph_operation) + names * sizeof(C.mb_graph_name) +
                              arguments * sizeof(C.mb_graph_argument) + bindings * sizeof(C.mb_graph_binding))
        if graph.memory == NULL:
            raise MemoryError
        memset(g, 0, sizeof(C.mb_graph))
        g.scan.base, g.scan.flags, g.scan.error = buffer.data, flags, &e
        g.function_capacity, g.block_capacity, g.operation_capacity = functions, blocks, operations
        g.name_capacity, g.argument_capacity, g.binding_capacity = names, arguments, bindings
        g.functions = <C.mb_graph_function *>graph.memory
        g.blocks = <C.mb_graph_block *>(g.functions + functions)
        g.operations = <C.mb_graph_operation *>(g.blocks + blocks)
        g.names = <C.mb_graph_name *>(g.operations + operations)
        g.arguments = <C.mb_graph_argument *>(g.names + names)
        g.bindings = <C.mb_graph_binding *>(g.arguments + arguments)
        with nogil:
            status = C.mb_program_graph(g, program)
        g.scan.error = NULL
        if status == C.MB_OK:
            graph.buffer, graph.words = buffer, [""] * 128
            return graph
        if status == C.MB_SPLIT:
            return None
        if status != C.MB_FULL:
            raise _error(&e, buffer.name, _graph_path(buffer, g))
        functions, blocks = max(functions, g.function_count), max(blocks, g.block_count)
        operations, names = max(operations, g.operation_count), max(names, g.name_count)
        arguments, bindings = max(arguments, g.argument_count), max(bindings, g.binding_count)


cdef str _graph_path(Buffer buffer, C.mb_graph *g):
    """Return where a walk stopped, as far as rows have been written. Operations have no name there."""
    def text(uint64_t offset, uint64_t nbytes):
        return (<const char *>buffer.data)[offset:offset + nbytes].decode("utf-8", "replace")
    cdef uint32_t function = g.scan.function, block = g.scan.block
    if function == C.MB_NONE or function >= g.function_capacity:
        return program_path("", None)
    name = text(g.functions[function].name.offset, g.functions[function].name.nbytes)
    if block == C.MB_NONE or block >= g.block_capacity:
        return program_path(name, None)
    key = text(g.blocks[block].name.offset, g.blocks[block].name.nbytes)
    return program_path(name, key, (), (g.scan.current.index, "") if g.scan.in_op else None)
