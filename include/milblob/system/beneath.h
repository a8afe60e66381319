/* system/beneath.h: opens a name below a directory, and nothing outside it, even if links on the way lead elsewhere. */
#ifndef MILBLOB_BENEATH_H
#define MILBLOB_BENEATH_H

#include "milblob/base.h"

#include <errno.h>

#if defined(__linux__) && (defined(_GNU_SOURCE) || defined(_DEFAULT_SOURCE))
#include <sys/syscall.h>
#include <unistd.h>
#if defined(SYS_openat2)
#define MB_OPENAT2 SYS_openat2
#elif !defined(__alpha__)
#define MB_OPENAT2 437 /* the same on every other architecture; headers older than Linux 5.6 do not have it */
#endif
#endif

/* Open `name`, relative to the directory `fd`, with the `flags` of open (none that creates).
 * out  a descriptor; or the negative errno: EXDEV for a link that escapes the directory or is absolute, ENOSYS without
 *      the system call (before Linux 5.6, other systems), EAGAIN if a directory is renamed during the call
 * note: the system call itself, for which C libraries have no function                                                  */
static inline int mb_open_beneath(int fd, const char *name, int flags) {
#if defined(MB_OPENAT2)
    const struct {
        uint64_t flags, mode, resolve;
    } how = {(uint64_t)(unsigned int)flags, 0, 0x08 /* RESOLVE_BENEATH */};
    const long result = syscall(MB_OPENAT2, fd, name, &how, sizeof how);
    return result >= 0 ? (int)result : -errno;
#else
    (void)fd;
    (void)name;
    (void)flags;
    return -ENOSYS;
#endif
}

#endif
