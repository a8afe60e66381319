# Part of _codec.pyx: one call at a time.

cdef class Turn:
    """The right to use one object: `with turn:` around every call. A second thread, which would corrupt its state, gets
    an error instead.

    Compiled, so that Ctrl-C cannot come between the end of a call and the release, which would refuse every later call.

    Args:
        what: name of the object in messages.

    Raises:
        RuntimeError: a call of another thread is still running, or an outer call of this thread.
    """
    cdef PyThread_type_lock lock
    cdef unsigned long owner  # the thread that has it; read while another has it, it is any other thread's
    cdef bint is_taken
    cdef str what

    def __cinit__(self, str what not None):
        self.what = what
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.lock != NULL:
            PyThread_free_lock(self.lock)

    cdef bint take(self) except -1:
        """Take it; return False if another thread has it."""
        if self.take_free():
            return True
        if self.is_taken and self.owner == <unsigned long>PyThread_get_thread_ident():
            raise RuntimeError(f"{self.what}: expected one call at a time, got another inside of it")
        return False

    cdef bint take_free(self) noexcept:
        """Take it; return False if a call has it."""
        if not PyThread_acquire_lock(self.lock, NOWAIT_LOCK):
            return False
        self.owner, self.is_taken = <unsigned long>PyThread_get_thread_ident(), True
        return True

    def __enter__(self):
        if not self.take():
            raise RuntimeError(f"{self.what}: expected one thread at a time, got another before a call ended")

    def __exit__(self, kind, error, trace):
        self.release()

    def when_free(self, action):
        """Call an action as soon as no other thread has it; return its result."""
        while not self.take():
            _sleep(0.002)
        try:
            return action()
        finally:
            self.release()

    cdef void release(self) noexcept:
        self.is_taken = False
        PyThread_release_lock(self.lock)
