/* system/writeback.h: starts writing bytes of a file to its disk, which a later sync then need not wait for. */
#ifndef MILBLOB_WRITEBACK_H
#define MILBLOB_WRITEBACK_H

#include "milblob/base.h"

#include <errno.h>

#if defined(__linux__) && (defined(_GNU_SOURCE) || defined(_DEFAULT_SOURCE))
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Start writing nbytes bytes at an offset; they are not waited for.
 * out  0, or the errno: ENOSYS where the platform has no such call
 * note: only a hint, which makes nothing durable; arguments of 64 bits differ between 32-bit platforms                  */
static inline int mb_start_writing(int fd, uint64_t offset, uint64_t nbytes) {
#if defined(__linux__) && (defined(_GNU_SOURCE) || defined(_DEFAULT_SOURCE)) && defined(SYS_sync_file_range) && defined(__LP64__)
    const unsigned int write = 2; /* SYNC_FILE_RANGE_WRITE */
    return syscall(SYS_sync_file_range, fd, offset, nbytes, write) == 0 ? 0 : errno;
#else
    (void)fd;
    (void)offset;
    (void)nbytes;
    return ENOSYS;
#endif
}

#endif
