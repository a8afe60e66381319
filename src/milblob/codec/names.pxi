# Part of _codec.pyx: names of the rows of a scan, and the table that finds them.

cdef C.mb_siphash_key _key  # names are hashed with it, in this process only
_key.words[0], _key.words[1] = [int.from_bytes(_urandom(8), "little") for _ in range(2)]


cdef class Names:
    """The names of rows, one after the other in one stretch of memory, and a table that finds them: see names.h.

    Made by `Scan.names` and by `names_of`. Rows that only read a name have none: they count, and cannot be found.
    """
    cdef C.mb_names rows
    cdef uint32_t *slots
    cdef uint64_t slot_count
    cdef str prefix  # the memory of `rows`
    cdef readonly bint is_unique  # no name occurs twice; else none is found

    def __dealloc__(self):
        free(self.rows.bytes)
        free(self.rows.ends)
        free(self.slots)

    def __len__(self):
        return <Py_ssize_t>self.rows.count

    def __getitem__(self, Py_ssize_t row):
        if row < 0 or <uint64_t>row >= self.rows.count:
            raise IndexError(row)
        return self.name(<uint64_t>row)

    cdef str name(self, uint64_t row):
        cdef C.mb_span span = C.mb_name_of(&self.rows, row)
        return PyUnicode_DecodeUTF8(<const char *>self.rows.bytes + span.offset, <Py_ssize_t>span.nbytes, NULL)

    def __iter__(self):
        return iter(self.tolist())

    def tolist(self):
        """Return every name; "" for rows that have none."""
        cdef uint64_t i
        return [self.name(i) for i in range(self.rows.count)]

    def pick(self, numbers not None):
        """Return the names of rows, by number."""
        cdef uint64_t number
        found = []
        for number in numbers:
            if number >= self.rows.count:
                raise IndexError(number)
            found.append(self.name(number))
        return found

    def find(self, str name not None):
        """Return the row of a name, or -1. If any name occurs twice, no name is found."""
        cdef Py_ssize_t nbytes
        cdef const char *data
        cdef uint32_t row
        if not self.is_unique:
            return -1
        try:
            data = PyUnicode_AsUTF8AndSize(name, &nbytes)
        except UnicodeEncodeError:  # a surrogate, which no name of a file has
            return -1
        row = C.mb_names_find(&self.rows, self.slots, self.slot_count, &_key, <const uint8_t *>data, <uint64_t>nbytes)
        return -1 if row == C.MB_NONE else <int64_t>row

    @property
    def has_slash(self):
        """Whether any name has a part before a slash, which may be left out when it is looked up."""
        return self.rows.nbytes > 0 and memchr(self.rows.bytes, b"/", self.rows.nbytes) != NULL

    @property
    def nbytes(self):
        """The memory that the names and their table take."""
        return self.rows.capacity + self.rows.end_capacity * sizeof(uint32_t) + self.slot_count * sizeof(uint32_t)

    cdef int make_room(self, uint64_t nbytes, uint64_t count) except -1:
        """Make room for `nbytes` bytes and `count` rows, and drop the old contents."""
        free(self.rows.bytes)
        free(self.rows.ends)
        self.rows.bytes, self.rows.ends = <uint8_t *>malloc(nbytes + 1), <uint32_t *>malloc((count + 1) * sizeof(uint32_t))
        if self.rows.bytes == NULL or self.rows.ends == NULL:
            raise MemoryError
        self.rows.capacity, self.rows.end_capacity = nbytes, count
        self.rows.nbytes = self.rows.count = 0
        return 0

    cdef int finish(self) except -1:
        """Give back the room that is left, and fill the table."""
        cdef void *smaller
        if self.rows.capacity > self.rows.nbytes:
            smaller = realloc(self.rows.bytes, self.rows.nbytes + 1)
            if smaller != NULL:
                self.rows.bytes, self.rows.capacity = <uint8_t *>smaller, self.rows.nbytes
        self.slot_count = 4
        while self.slot_count * 3 < self.rows.count * 4 + 8:  # three quarters full at most
            self.slot_count *= 2
        self.slots = <uint32_t *>calloc(self.slot_count, sizeof(uint32_t))
        if self.slots == NULL:
            raise MemoryError
        with nogil:
            self.is_unique = C.mb_names_index(&self.rows, self.slots, self.slot_count, &_key)
        return 0


def names_of(list texts not None):
    """Make Names of texts; None is a row without a name."""
    cdef Names names = Names.__new__(Names)
    cdef uint64_t total = 0, i = 0
    cdef Py_ssize_t nbytes
    cdef const char *data
    for text in texts:
        if text is not None:
            PyUnicode_AsUTF8AndSize(<str?>text, &nbytes)
            total += <uint64_t>nbytes
    _require_names(total, C.MB_MAX_NAMES - 1, None)
    names.make_room(total, <uint64_t>len(texts))
    for text in texts:
        if text is None:
            names.rows.ends[i] = <uint32_t>names.rows.nbytes | C.MB_NAMELESS
        else:
            data = PyUnicode_AsUTF8AndSize(<str>text, &nbytes)
            memcpy(names.rows.bytes + names.rows.nbytes, data, nbytes)
            names.rows.nbytes += <uint64_t>nbytes
            names.rows.ends[i] = <uint32_t>names.rows.nbytes
        i += 1
    names.rows.count = i
    names.finish()
    return names


cdef _require_names(uint64_t nbytes, uint64_t most, file):
    if nbytes > most:
        raise FormatError(f"names of all constants: expected at most {most} bytes, got {nbytes} or more", file=file)
