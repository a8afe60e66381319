# Part of _codec.pyx: MLIR bytecode.

cdef bytearray _rows(uint64_t count, size_t nbytes):
    return bytearray(<Py_ssize_t>(count * nbytes))


def mlir_read(Buffer file not None):
    """Read the tables and the operations of a file of MLIR bytecode. No attribute, type or resource is looked into.

    Returns:
        dict: "producer" and "sections" (id, offset, data offset, nbytes, alignment, in the order of the file), and the
        rows of each table as a bytearray: "strings", "dialects", "op_names", "attributes", "types", "resources",
        "properties", "ops", "values", "operands", "ir_sections", "owners"; their structures are in include/milblob/mlir.
        Rows refer to the file by offset, and to each other by number.

    Raises:
        FormatError: the bytes break the format.
    """
    cdef C.mb_error e
    cdef C.mb_status status
    cdef M.mb_mlir_section sections[9]
    cdef uint8_t order[9]
    cdef uint32_t count = 0, i
    cdef M.mb_mlir_span producer
    cdef M.mb_mlir_tables t
    cdef M.mb_mlir_ir ir
    cdef const M.mb_mlir_section *s
    memset(&t, 0, sizeof(t))
    memset(&ir, 0, sizeof(ir))
    if M.mb_mlir_sections(file.data, file.nbytes, sections, order, &count, &producer, &e):
        raise _error(&e, file.name)
    s = &sections[4]
    with nogil:
        status = M.mb_mlir_read_tables(file.data, sections, &t, False, &e)
        if status == C.MB_OK:
            status = M.mb_mlir_read_ir(file.data, s, &t, &ir, False, &e)
    if status:
        raise _error(&e, file.name)
    cdef bytearray strings = _rows(t.string_count, sizeof(M.mb_mlir_span))
    cdef bytearray dialects = _rows(t.dialect_count, sizeof(M.mb_mlir_dialect))
    cdef bytearray op_names = _rows(t.op_name_count, sizeof(M.mb_mlir_op_name))
    cdef bytearray attributes = _rows(t.attribute_count, sizeof(M.mb_mlir_entry))
    cdef bytearray types = _rows(t.type_count, sizeof(M.mb_mlir_entry))
    cdef bytearray resources = _rows(t.resource_count, sizeof(M.mb_mlir_resource))
    cdef bytearray properties = _rows(t.property_count, sizeof(M.mb_mlir_span))
    cdef bytearray ops = _rows(ir.op_count, sizeof(M.mb_mlir_op))
    cdef bytearray values = _rows(ir.value_count, sizeof(M.mb_mlir_value))
    cdef bytearray operands = _rows(ir.operand_count, sizeof(M.mb_mlir_operand))
    cdef bytearray ir_sections = _rows(ir.section_count, sizeof(M.mb_mlir_section))
    cdef bytearray owners = _rows(ir.section_count, sizeof(uint32_t))
    t.strings = <M.mb_mlir_span *><char *>strings
    t.dialects = <M.mb_mlir_dialect *><char *>dialects
    t.op_names = <M.mb_mlir_op_name *><char *>op_names
    t.attributes = <M.mb_mlir_entry *><char *>attributes
    t.types = <M.mb_mlir_entry *><char *>types
    t.resources = <M.mb_mlir_resource *><char *>resources
    t.properties = <M.mb_mlir_span *><char *>properties
    ir.ops = <M.mb_mlir_op *><char *>ops
    ir.values = <M.mb_mlir_value *><char *>values
    ir.operands = <M.mb_mlir_operand *><char *>operands
    ir.sections = <M.mb_mlir_section *><char *>ir_sections
    ir.owners = <uint32_t *><char *>owners
    with nogil:
        status = M.mb_mlir_read_tables(file.data, sections, &t, True, &e)
        if status == C.MB_OK:
            status = M.mb_mlir_read_ir(file.data, s, &t, &ir, True, &e)
    if status:
        raise _error(&e, file.name)
    return {
        "producer": PyBytes_FromStringAndSize(<const char *>file.data + producer.offset, <Py_ssize_t>producer.nbytes),
        "sections": [
            (order[i], sections[order[i]].offset, sections[order[i]].data_offset, sections[order[i]].nbytes,
             sections[order[i]].alignment)
            for i in range(count)
        ],
        "strings": strings, "dialects": dialects, "op_names": op_names, "attributes": attributes, "types": types,
        "resources": resources, "properties": properties, "ops": ops, "values": values, "operands": operands,
        "ir_sections": ir_sections, "owners": owners,
    }


def mlir_varints(Buffer file not None, uint64_t offset, uint64_t nbytes, uint64_t most=64):
    """Read varints that lie at [offset, offset + nbytes), at most `most` of them.

    Returns:
        (numbers, offset after the last of them).

    Raises:
        FormatError: one that does not end there.
    """
    _span_check(file, offset, nbytes)
    cdef C.mb_cursor cursor = C.mb_cursor_of(file.data, file.data + offset, nbytes)
    cdef C.mb_error e
    cdef uint64_t number = 0
    cdef list found = []
    while cursor.at < cursor.end and <uint64_t>len(found) < most:
        if M.mb_mlir_varint(&cursor, &number, b"number in an attribute or a type", &e):
            raise _error(&e, file.name)
        found.append(number)
    return found, <uint64_t>(cursor.at - cursor.base)
