# The C functions and types for MLIR bytecode, as _kernels.pxd has those for all else.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from milblob._kernels cimport mb_cursor, mb_error, mb_status

cdef extern from "milblob/mlir/operations.h" nogil:
    ctypedef struct mb_mlir_span:
        uint64_t offset, nbytes
    ctypedef struct mb_mlir_section:
        uint64_t offset, data_offset, nbytes
        uint32_t id, alignment
    ctypedef struct mb_mlir_dialect:
        pass
    ctypedef struct mb_mlir_op_name:
        pass
    ctypedef struct mb_mlir_entry:
        pass
    ctypedef struct mb_mlir_resource:
        pass
    ctypedef struct mb_mlir_tables:
        uint32_t string_count, dialect_count, op_name_count, attribute_count, type_count, resource_count, property_count
        mb_mlir_span *strings
        mb_mlir_dialect *dialects
        mb_mlir_op_name *op_names
        mb_mlir_entry *attributes
        mb_mlir_entry *types
        mb_mlir_resource *resources
        mb_mlir_span *properties
    ctypedef struct mb_mlir_op:
        pass
    ctypedef struct mb_mlir_value:
        pass
    ctypedef struct mb_mlir_operand:
        pass
    ctypedef struct mb_mlir_ir:
        uint32_t op_count, value_count, operand_count, section_count
        mb_mlir_op *ops
        mb_mlir_value *values
        mb_mlir_operand *operands
        mb_mlir_section *sections
        uint32_t *owners
    mb_status mb_mlir_varint(mb_cursor *cursor, uint64_t *value, const char *what, mb_error *error)
    mb_status mb_mlir_sections(const uint8_t *file, uint64_t nbytes, mb_mlir_section *sections, uint8_t *order, uint32_t *count,
                               mb_mlir_span *producer, mb_error *error)
    mb_status mb_mlir_read_tables(const uint8_t *file, const mb_mlir_section *sections, mb_mlir_tables *t, bint is_filling,
                                  mb_error *error)
    mb_status mb_mlir_read_ir(const uint8_t *file, const mb_mlir_section *section, const mb_mlir_tables *tables, mb_mlir_ir *ir,
                              bint is_filling, mb_error *error)
