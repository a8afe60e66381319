/* system/above.h: looks for a name in a directory and in all directories above it, and beside a file.
 *
 * Opening a file asks this, and most of the answers are "no such file". Asked one by one from Python, each would make an
 * exception, which takes longer than the system call. */
#ifndef MILBLOB_ABOVE_H
#define MILBLOB_ABOVE_H

#include "milblob/base.h"

#include <errno.h>

#if (defined(__linux__) && (defined(_GNU_SOURCE) || defined(_DEFAULT_SOURCE))) || defined(__APPLE__)
#include <unistd.h>
#define MB_HAS_READLINK
#endif

enum { MB_PATH_NBYTES = 8192 }; /* twice what a system call takes, so that too long a path fails there and not here */

#if defined(MB_HAS_READLINK)
/* Whether a name exists, a link counting as itself: 1, 0 or the negative errno. Only "no such file" counts as no. This is
 * readlink and not lstat, whose symbol is newer than the C library of many systems: glibc 2.33. */
static inline int mb_is_there(const char *path) {
    char first;
    if (readlink(path, &first, 1) >= 0 || errno == EINVAL) return 1; /* a link; something else */
    return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
}

/* Whether a name leads to a directory: 1, 0 or the negative errno. The path ends with a slash. */
static inline int mb_is_directory(const char *path) {
    if (access(path, F_OK) == 0) return 1;
    return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
}
#endif

/* Look for `name` in the directory `path` and in every directory above it, up to the root. If `path` is not a directory,
 * look first for "." + its last component + `name`, beside it.
 * in   path: absolute, no slash at its end unless it is the root; name: one component
 * out  bytes of `path` that are the directory where `name` is (1 for the root); those of `path` and one more if it is
 *      beside `path`; 0 if there is none; or the negative errno: of a place that cannot be examined, ENAMETOOLONG, or
 *      ENOSYS without readlink                                                                                          */
static inline int64_t mb_look_above(const char *path, const char *name) {
#if defined(MB_HAS_READLINK)
    char asked[MB_PATH_NBYTES];
    const size_t whole = strlen(path), name_nbytes = strlen(name) + 1;
    size_t end = whole;
    if (whole == 0 || path[0] != '/' || whole + name_nbytes + 2 > sizeof asked) return whole == 0 || path[0] != '/' ? -EINVAL : -ENAMETOOLONG;
    if (end == 1) end = 0; /* the root: its slash is the one before the name */
    memcpy(asked, path, end);
    for (;;) {
        asked[end] = '/';
        memcpy(asked + end + 1, name, name_nbytes);
        const int found = mb_is_there(asked);
        if (found != 0) return found < 0 ? found : end > 0 ? (int64_t)end : 1;
        if (end == 0) return 0;
        size_t above = end;
        while (path[--above] != '/') {}
        if (end == whole) {
            asked[above + 1] = '.';
            memcpy(asked + above + 2, path + above + 1, end - above - 1);
            memcpy(asked + end + 1, name, name_nbytes);
            const int beside = mb_is_there(asked);
            if (beside < 0) return beside;
            if (beside > 0) {
                memcpy(asked, path, end);
                memcpy(asked + end, "/", 2);
                const int is_directory = mb_is_directory(asked);
                if (is_directory <= 0) return is_directory < 0 ? is_directory : (int64_t)whole + 1;
            }
        }
        end = above;
    }
#else
    (void)path;
    (void)name;
    return -ENOSYS;
#endif
}

#endif
