# Part of _codec.pyx: the rows of a scan as objects: operations, constants, and what many constants have in common.

# Rows refer to numbers and text only, and constants to their operation: there are no cycles, so the garbage collector need
# not track them. Each access makes new objects, so two are equal if they represent the same place.


@cython.no_gc
cdef class Op:
    """An output of an operation that owns constants: see mb_op. `shape` None, `mil_code` 0: not a tensor."""
    cdef object _origin
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

    Made again each time it is asked for. Two are equal, and have one hash, if they are the same message of one buffer.
    """
    cdef object _origin, _token
    cdef C.mb_span _value, _payload
    cdef uint32_t _row  # in the scan of this _token
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

    def __eq__(self, other):
        if not isinstance(other, Constant):
            return NotImplemented
        return self._value.offset == (<Constant>other)._value.offset and self._origin is (<Constant>other)._origin

    def __hash__(self):
        return <Py_hash_t>((self._value.offset * <uint64_t>0x9e3779b97f4a7c15ULL) >> 1)


@cython.no_gc
cdef class _Form:
    """What many constants of a Program have in common: see mb_form. Its texts outlive the Program's bytes."""
    cdef C.mb_form row
    cdef str key, text, type
    cdef tuple steps
    cdef object shape, op_shape
    cdef bint has_size  # the form has the number of bytes of the values
