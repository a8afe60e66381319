# Part of _codec.pyx: the operations and bindings of a Graph, under program/view.py.


# Made for each operation that is listed. They refer to the view, and it never to them: there are no cycles.
@cython.no_gc
cdef class GraphOperation:
    """The part of the table that program/view.py's Operation reads."""
    cdef Graph graph
    cdef readonly object view
    cdef readonly uint32_t row

    cdef C.mb_graph_operation *at(self) except NULL:
        if self.graph is None:
            raise TypeError("Operation: expected to be made by a Block, got one without a Program")
        return &self.graph.rows.operations[self.row]

    @property
    def type(self):
        return self.graph.word(self.at().type)

    @property
    def name(self):
        cdef C.mb_graph_operation *o = self.at()
        return self.graph.text(self.graph.rows.names[o.outputs].name) if o.output_count else ""

    @property
    def index(self):
        return self.at().index

    @property
    def block_row(self):
        return self.at().block

    @property
    def message(self):
        cdef C.mb_graph_operation *o = self.at()
        return o.message.offset, o.message.nbytes

    @property
    def output_rows(self):
        cdef C.mb_graph_operation *o = self.at()
        return o.outputs, o.output_count

    @property
    def output_names(self):
        cdef C.mb_graph_operation *o = self.at()
        cdef uint32_t i
        return tuple([self.graph.text(self.graph.rows.names[i].name) for i in range(o.outputs, o.outputs + o.output_count)])

    @property
    def block_rows(self):
        cdef C.mb_graph_operation *o = self.at()
        cdef uint32_t row = o.blocks, i
        cdef list found = []
        for i in range(o.block_count):
            found.append(row)
            row = self.graph.rows.blocks[row].end
        return found

    @property
    def inputs(self):
        cdef C.mb_graph_operation *o = self.at()
        cdef C.mb_graph_argument *a
        cdef dict found = {}
        cdef GraphBinding binding
        cdef uint32_t k, i
        cdef type cls
        if o.argument_count == 0:
            return found
        cls = self.view.binding_class
        for k in range(o.arguments, o.arguments + o.argument_count):
            a = &self.graph.rows.arguments[k]
            bindings = []
            for i in range(a.bindings, a.bindings + a.binding_count):
                binding = <GraphBinding>cls.__new__(cls)
                binding.graph, binding.view, binding.row = self.graph, self.view, i
                bindings.append(binding)
            found[self.graph.word(a.key)] = tuple(bindings)
        return found


@cython.no_gc
cdef class GraphBinding:
    """The part of the table that program/view.py's Binding reads."""
    cdef Graph graph
    cdef readonly object view
    cdef readonly uint32_t row

    cdef C.mb_graph_binding *at(self) except NULL:
        if self.graph is None:
            raise TypeError("Binding: expected to be made by an Operation, got one without a Program")
        return &self.graph.rows.bindings[self.row]

    @property
    def is_value(self):
        return self.at().is_value != 0

    @property
    def name(self):
        cdef C.mb_graph_binding *b = self.at()
        return None if b.is_value else self.graph.text(b.span)

    @property
    def span(self):
        cdef C.mb_graph_binding *b = self.at()
        return b.span.offset, b.span.nbytes


cdef class GraphOperations:
    """An iterator over the operations of a block in program order; `nested`: also over those in its operations' blocks."""
    cdef Graph graph
    cdef object view
    cdef type cls
    cdef uint32_t row, end
    cdef bint nested

    def __init__(self, Graph graph not None, view, uint32_t block, bint nested=False):
        if block >= graph.rows.block_count:
            raise IndexError(block)
        self.graph, self.view, self.cls, self.nested = graph, view, view.operation_class, nested
        self.row, self.end = graph.rows.blocks[block].operations, graph.rows.blocks[block].operation_end

    def __iter__(self):
        return self

    def __next__(self):
        cdef uint32_t row = self.row
        if row >= self.end:
            raise StopIteration
        self.row = row + 1 if self.nested else self.graph.rows.operations[row].end
        return graph_operation(self.graph, self.view, row)


def graph_operation(Graph graph not None, view, uint32_t row):
    """Make the view.operation_class of a row."""
    cdef GraphOperation operation
    cdef type cls = view.operation_class
    if row >= graph.rows.operation_count:
        raise IndexError(row)
    operation = <GraphOperation>cls.__new__(cls)
    operation.graph, operation.view, operation.row = graph, view, row
    return operation
