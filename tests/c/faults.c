/* faults.c: a library to preload that makes the nth call that changes a file fail, write short, or kill the process.
 *
 * Only calls below one directory count. tests/support/faults.py builds it, and says what it does through faults_arm. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FAIL, FAIL_ON, SHORT, SHORT_THEN_FAIL, KILL_BEFORE, KILL_MIDDLE, KILL_AFTER };
enum { OTHER, CREATE, WRITE };  /* what a call does; FAIL_ON goes on failing only where something would take room */
enum { GO, STOP, HALF, LAST };  /* what to do with one */

static struct {
    char root[PATH_MAX];
    size_t root_nbytes;
    long number, seen;
    int mode, code;
    const char *what;
} plan;

/* The nth call from now on, below `root`, meets its fate: errno `code`, or what `mode` says. 0: only count. */
void faults_arm(const char *root, long number, int mode, int code) {
    plan.number = number;
    plan.seen = 0;
    plan.mode = mode;
    plan.code = code;
    plan.what = "";
    snprintf(plan.root, sizeof plan.root, "%s", root);
    plan.root_nbytes = strlen(plan.root);
}

long faults_seen(void) { return plan.seen; }
const char *faults_what(void) { return plan.what; }

static bool is_below(const char *path) {
    return plan.root_nbytes != 0 && strncmp(path, plan.root, plan.root_nbytes) == 0;
}

static bool is_fd_below(int fd) {
    char link[64], path[PATH_MAX];
    if (plan.root_nbytes == 0) return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t nbytes = readlink(link, path, sizeof path - 1);
    if (nbytes < 0) return false;
    path[nbytes] = 0;
    return is_below(path);
}

static int meet(const char *what, int does, bool counts) {
    if (!counts) return GO;
    long now = ++plan.seen;
    if (plan.number == 0 || now < plan.number) return GO;
    if (now > plan.number) {
        bool lasting = plan.mode == FAIL_ON || plan.mode == SHORT_THEN_FAIL;
        if (!lasting || does == OTHER) return GO;
        errno = plan.code;
        return STOP;
    }
    plan.what = what;
    switch (plan.mode) {
    case SHORT:
    case SHORT_THEN_FAIL: return does == WRITE ? HALF : GO;
    case KILL_BEFORE: raise(SIGKILL); break;
    case KILL_MIDDLE:
        if (does == WRITE) return HALF;
        raise(SIGKILL);
        break;
    case KILL_AFTER: return LAST;
    default: break;
    }
    errno = plan.code;
    return STOP;
}

static void after(int fate) {
    if (fate == LAST || (fate == HALF && plan.mode == KILL_MIDDLE)) raise(SIGKILL);
}

static size_t part(int fate, size_t nbytes) { return fate == HALF && nbytes > 1 ? nbytes / 2 : nbytes; }

#define NEXT(type, name) \
    static type (*real)(); \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, name)

#define CALL(type, name, does, counts, nothing, call) \
    NEXT(type, name); \
    int fate = meet(name, does, counts); \
    if (fate == STOP) return nothing; \
    type result = call; \
    after(fate); \
    return result

ssize_t write(int fd, const void *data, size_t nbytes) {
    CALL(ssize_t, "write", WRITE, is_fd_below(fd), -1, real(fd, data, part(fate, nbytes)));
}
#define PWRITE(name) \
    ssize_t name(int fd, const void *data, size_t nbytes, off_t at) { \
        CALL(ssize_t, #name, WRITE, is_fd_below(fd), -1, real(fd, data, part(fate, nbytes), at)); \
    }
PWRITE(pwrite)
PWRITE(pwrite64)
/* A vector is cut after the first half of its first part. */
static ssize_t cut(int fd, const struct iovec *parts, off_t at) {
    for (; parts->iov_len == 0; parts++) {}
    return at < 0 ? syscall(SYS_write, fd, parts->iov_base, (parts->iov_len + 1) / 2)
                  : syscall(SYS_pwrite64, fd, parts->iov_base, (parts->iov_len + 1) / 2, at);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    CALL(ssize_t, "writev", WRITE, is_fd_below(fd), -1, fate == HALF ? cut(fd, parts, -1) : real(fd, parts, count));
}
#define PWRITEV(name) \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t at) { \
        CALL(ssize_t, #name, WRITE, is_fd_below(fd), -1, fate == HALF ? cut(fd, parts, at) : real(fd, parts, count, at)); \
    }
PWRITEV(pwritev)
PWRITEV(pwritev64)
#define PWRITEV2(name) \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t at, int flags) { \
        CALL(ssize_t, #name, WRITE, is_fd_below(fd), -1, \
             fate == HALF ? cut(fd, parts, at) : real(fd, parts, count, at, flags)); \
    }
PWRITEV2(pwritev2)
PWRITEV2(pwritev64v2) /* what os.pwritev calls */
size_t fwrite(const void *data, size_t itemsize, size_t count, FILE *file) {
    CALL(size_t, "fwrite", WRITE, is_fd_below(fileno(file)), 0, real(data, itemsize, part(fate, count), file));
}
ssize_t copy_file_range(int from, off_t *from_at, int to, off_t *to_at, size_t nbytes, unsigned flags) {
    CALL(ssize_t, "copy_file_range", WRITE, is_fd_below(to), -1, real(from, from_at, to, to_at, part(fate, nbytes), flags));
}
#define SENDFILE(name) \
    ssize_t name(int to, int from, off_t *at, size_t nbytes) { \
        CALL(ssize_t, #name, WRITE, is_fd_below(to), -1, real(to, from, at, part(fate, nbytes))); \
    }
SENDFILE(sendfile)
SENDFILE(sendfile64)

int fsync(int fd) { CALL(int, "fsync", OTHER, is_fd_below(fd), -1, real(fd)); }
int fdatasync(int fd) { CALL(int, "fdatasync", OTHER, is_fd_below(fd), -1, real(fd)); }
int ftruncate(int fd, off_t nbytes) { CALL(int, "ftruncate", CREATE, is_fd_below(fd), -1, real(fd, nbytes)); }
int ftruncate64(int fd, off_t nbytes) { CALL(int, "ftruncate64", CREATE, is_fd_below(fd), -1, real(fd, nbytes)); }
int fallocate(int fd, int mode, off_t at, off_t nbytes) {
    CALL(int, "fallocate", CREATE, is_fd_below(fd), -1, real(fd, mode, at, nbytes));
}
int fallocate64(int fd, int mode, off_t at, off_t nbytes) {
    CALL(int, "fallocate64", CREATE, is_fd_below(fd), -1, real(fd, mode, at, nbytes));
}
int posix_fallocate(int fd, off_t at, off_t nbytes) {
    CALL(int, "posix_fallocate", CREATE, is_fd_below(fd), errno, real(fd, at, nbytes));
}
int posix_fallocate64(int fd, off_t at, off_t nbytes) {
    CALL(int, "posix_fallocate64", CREATE, is_fd_below(fd), errno, real(fd, at, nbytes));
}
int fchmod(int fd, mode_t mode) { CALL(int, "fchmod", OTHER, is_fd_below(fd), -1, real(fd, mode)); }
int chmod(const char *path, mode_t mode) { CALL(int, "chmod", OTHER, is_below(path), -1, real(path, mode)); }
int rename(const char *old, const char *new) { CALL(int, "rename", OTHER, is_below(new), -1, real(old, new)); }
int renameat(int old_at, const char *old, int new_at, const char *new) {
    CALL(int, "renameat", OTHER, is_below(new), -1, real(old_at, old, new_at, new));
}
int link(const char *old, const char *new) { CALL(int, "link", CREATE, is_below(new), -1, real(old, new)); }
int linkat(int old_at, const char *old, int new_at, const char *new, int flags) {
    CALL(int, "linkat", CREATE, is_below(new), -1, real(old_at, old, new_at, new, flags));
}
int symlink(const char *target, const char *path) {
    CALL(int, "symlink", CREATE, is_below(path), -1, real(target, path));
}
int mkdir(const char *path, mode_t mode) { CALL(int, "mkdir", CREATE, is_below(path), -1, real(path, mode)); }

#define MODE_OF(last) \
    mode_t mode = 0; \
    bool makes = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; \
    if (makes) { \
        va_list rest; \
        va_start(rest, last); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }
#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        MODE_OF(flags) \
        CALL(int, #name, CREATE, makes && is_below(path), -1, real(path, flags, mode)); \
    }
OPEN(open)
OPEN(open64)
#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        MODE_OF(flags) \
        CALL(int, #name, CREATE, makes && (path[0] == '/' ? is_below(path) : is_fd_below(at)), -1, real(at, path, flags, mode)); \
    }
OPENAT(openat)
OPENAT(openat64)

/* milblob exchanges directories by the system call itself. */
long syscall(long number, ...) {
    long a[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(rest, long);
    va_end(rest);
    CALL(long, "syscall", OTHER, number == SYS_renameat2 && is_below((const char *)a[3]), -1,
         real(number, a[0], a[1], a[2], a[3], a[4], a[5]));
}
