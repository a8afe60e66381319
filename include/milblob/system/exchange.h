/* system/exchange.h: exchanges two names of one file system in one step, so that neither is ever missing. */
#ifndef MILBLOB_EXCHANGE_H
#define MILBLOB_EXCHANGE_H

#include "milblob/base.h"

#include <errno.h>

#if defined(__linux__) && (defined(_GNU_SOURCE) || defined(_DEFAULT_SOURCE))
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <stdio.h>
#endif

/* Exchange what the paths a and b name, files or directories.
 * out  0, or the errno: ENOSYS where the platform has no such call, EINVAL or ENOTSUP where the file system lacks it
 * note: the system call itself, because C libraries older than glibc 2.28 have no function for it                       */
static inline int mb_exchange(const char *a, const char *b) {
#if defined(__linux__) && (defined(_GNU_SOURCE) || defined(_DEFAULT_SOURCE)) && defined(SYS_renameat2)
    const int at_cwd = -100; /* AT_FDCWD */
    const unsigned int swap = 2; /* RENAME_EXCHANGE */
    return syscall(SYS_renameat2, at_cwd, a, at_cwd, b, swap) == 0 ? 0 : errno;
#elif defined(__APPLE__) && defined(RENAME_SWAP)
    return renamex_np(a, b, RENAME_SWAP) == 0 ? 0 : errno;
#else
    (void)a;
    (void)b;
    return ENOSYS;
#endif
}

#endif
