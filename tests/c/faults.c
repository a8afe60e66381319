/* faults.c: a library to preload that makes the nth call on a file fail, read or write short, or kill the process; and
 * one that records every call that changes a file, with its data.
 *
 * Only calls below one directory count. tests/support/faults.py builds it, and says what it does through faults_arm and
 * faults_record; tests/support/powerloss.py reads what was recorded. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif

enum { FAIL, FAIL_ON, SHORT, SHORT_THEN_FAIL, KILL_BEFORE, KILL_MIDDLE, KILL_AFTER };
/* What a call does. FAIL_ON goes on failing only where something would take room. */
enum { OTHER, CREATE, WRITE, LOOK, READ, REMOVE, CLOSE };
enum { CHANGES = 1, LOOKS = 2, REMOVES = 4, CLOSES = 8 }; /* which of them count */
enum { GO, STOP, HALF, LAST };                            /* what to do with one */

static struct {
    char root[PATH_MAX];
    size_t root_nbytes;
    long number, seen;
    int mode, code, kinds;
    const char *what;
} plan;
static const char *names[1 << 14]; /* of the calls that counted */
static int log_fd = -1;
static pthread_mutex_t log_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

/* The nth call from now on, of `kinds` and below `root`, meets its fate: errno `code`, or what `mode` says. 0: only
 * count. */
void faults_arm(const char *root, long number, int mode, int code, int kinds) {
    plan.number = number;
    plan.seen = 0;
    plan.mode = mode;
    plan.code = code;
    plan.kinds = kinds;
    plan.what = "";
    snprintf(plan.root, sizeof plan.root, "%s", root);
    plan.root_nbytes = strlen(plan.root);
}

/* From now on write what changes to a descriptor; -1: no longer. */
void faults_record(int fd) { log_fd = fd; }

long faults_seen(void) { return plan.seen; }
const char *faults_name(long number) { return number <= 1 << 14 ? names[number - 1] : ""; }
const char *faults_what(void) { return plan.what; }

/* ---------------------------------------------------------------------------------------------------------- helpers */

#define NEXT(type, name) \
    static type (*real)(); \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, name)

/* A system call past everything below. */
static long raw(long number, long a, long b, long c, long d) {
    NEXT(long, "syscall");
    return real(number, a, b, c, d, 0L, 0L);
}

static bool is_below(const char *path) {
    size_t n = plan.root_nbytes;
    return n != 0 && path && strncmp(path, plan.root, n) == 0 && (path[n] == '/' || path[n] == 0);
}

static bool path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t nbytes = raw(SYS_readlinkat, AT_FDCWD, (long)link, (long)path, PATH_MAX - 1);
    path[nbytes < 0 ? 0 : nbytes] = 0;
    return nbytes >= 0;
}

static bool is_fd_below(int fd) {
    char path[PATH_MAX];
    int code = errno;
    bool is = plan.root_nbytes != 0 && path_of(fd, path) && is_below(path);
    errno = code;
    return is;
}

static bool is_at_below(int at, const char *path) {
    if (!path || path[0] == '/') return is_below(path);
    if (at != AT_FDCWD) return is_fd_below(at);
    char cwd[PATH_MAX];
    return plan.root_nbytes != 0 && raw(SYS_getcwd, (long)cwd, sizeof cwd, 0, 0) > 0 && is_below(cwd);
}

static int kind_of(int does) {
    return does == LOOK || does == READ ? LOOKS : does == REMOVE ? REMOVES : does == CLOSE ? CLOSES : CHANGES;
}

static int meet(const char *what, int does, bool counts) {
    if (!counts || !(plan.kinds & kind_of(does))) return GO;
    long now = __atomic_add_fetch(&plan.seen, 1, __ATOMIC_RELAXED);
    if (now <= 1 << 14) names[now - 1] = what;
    if (plan.number == 0 || now < plan.number) return GO;
    if (now > plan.number) {
        bool lasting = plan.mode == FAIL_ON || plan.mode == SHORT_THEN_FAIL;
        if (!lasting || (does != CREATE && does != WRITE)) return GO;
        errno = plan.code;
        return STOP;
    }
    plan.what = what;
    switch (plan.mode) {
    case SHORT:
    case SHORT_THEN_FAIL: return does == WRITE || does == READ ? HALF : GO;
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

/* -------------------------------------------------------------------------------------------------------- recording */

/* While something is recorded, a call that changes a file and the line about it are one step for other threads. */
static bool begin(bool counts) {
    if (log_fd < 0 || !counts) return false;
    pthread_mutex_lock(&log_lock);
    return true;
}

static void end(void) { pthread_mutex_unlock(&log_lock); }

static void put(const void *data, size_t nbytes) {
    while (nbytes) {
        long done = raw(SYS_write, log_fd, (long)data, nbytes, 0);
        if (done <= 0) abort();
        data = (const char *)data + done;
        nbytes -= done;
    }
}

static void note(const char *op, unsigned long inode, long long at, const char *a, const char *b, const void *data,
                 size_t nbytes) {
    char line[128];
    int n = snprintf(line, sizeof line, "%s %lu %lld %zu %zu %zu\n", op, inode, at, strlen(a), strlen(b), nbytes);
    put(line, n);
    put(a, strlen(a));
    put(b, strlen(b));
    put(data, nbytes);
}

static unsigned long inode_of(int fd) {
    struct stat status;
    return raw(SYS_fstat, fd, (long)&status, 0, 0) == 0 ? status.st_ino : 0;
}

static int mode_of(int fd) {
    struct stat status;
    return raw(SYS_fstat, fd, (long)&status, 0, 0) == 0 ? status.st_mode & 07777 : 0;
}

static bool status_at(int at, const char *path, struct stat *status) {
    return raw(SYS_newfstatat, at, (long)path, (long)status, AT_SYMLINK_NOFOLLOW) == 0;
}

static unsigned long inode_at(int at, const char *path) {
    struct stat status;
    return status_at(at, path, &status) ? status.st_ino : 0;
}

static int mode_at(int at, const char *path) {
    struct stat status;
    return status_at(at, path, &status) ? status.st_mode & 07777 : 0;
}

/* The name of an entry, with the links in its directory resolved. */
static const char *name_at(int at, const char *path, char *name) {
    char directory[PATH_MAX];
    snprintf(directory, sizeof directory, "%s", path);
    size_t n = strlen(directory);
    while (n > 1 && directory[n - 1] == '/') directory[--n] = 0;
    char base[PATH_MAX];
    char *slash = strrchr(directory, '/');
    snprintf(base, sizeof base, "%s", slash ? slash + 1 : directory);
    if (slash) slash[slash == directory] = 0;
    int fd = raw(SYS_openat, at, (long)(slash ? directory : "."), O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0 || !path_of(fd, name)) abort();
    raw(SYS_close, fd, 0, 0, 0);
    n = strlen(name);
    snprintf(name + n, PATH_MAX - n, "/%s", base);
    return name;
}

/* What was written, read again, since a kernel may have copied it from anywhere. */
static void note_write(int fd, long long at, long long nbytes) {
    char link[64], data[1 << 16];
    if (nbytes <= 0) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int reader = raw(SYS_openat, AT_FDCWD, (long)link, O_RDONLY | O_CLOEXEC, 0);
    if (reader < 0) abort();
    for (long long done = 0; done < nbytes;) {
        long long size = nbytes - done < (long long)sizeof data ? nbytes - done : (long long)sizeof data;
        long long got = raw(SYS_pread64, reader, (long)data, size, at + done);
        if (got <= 0) abort();
        note("write", inode_of(fd), at + done, "", "", data, got);
        done += got;
    }
    raw(SYS_close, reader, 0, 0, 0);
}

static void note_entry(const char *op, int at, const char *path) {
    char name[PATH_MAX];
    note(op, inode_at(at, path), mode_at(at, path), name_at(at, path, name), "", "", 0);
}

static void note_two(const char *op, int at, const char *a, int to, const char *b) {
    char one[PATH_MAX], two[PATH_MAX];
    note(op, inode_at(to, b), 0, name_at(at, a, one), name_at(to, b, two), "", 0);
}

/* ------------------------------------------------------------------------------------------------------------ calls */

#define CALL(type, name, does, counts, nothing, call, noted) \
    NEXT(type, name); \
    bool is_ours = counts; \
    int what_it_does = does; \
    int fate = meet(name, what_it_does, is_ours); \
    if (fate == STOP) return nothing; \
    bool records = begin(is_ours && what_it_does != LOOK && what_it_does != READ); \
    type result = call; \
    if (records) { \
        int code = errno; \
        noted; \
        errno = code; \
        end(); \
    } \
    after(fate); \
    return result

/* What looks at files, or lets go of one. */
#define LOOKING(type, name, counts, nothing, call) CALL(type, name, LOOK, counts, nothing, call, )

#define HERE(fd) (raw(SYS_lseek, fd, 0, SEEK_CUR, 0) - (long)result)

ssize_t write(int fd, const void *data, size_t nbytes) {
    CALL(ssize_t, "write", WRITE, is_fd_below(fd), -1, real(fd, data, part(fate, nbytes)), note_write(fd, HERE(fd), result));
}
#define PWRITE(name) \
    ssize_t name(int fd, const void *data, size_t nbytes, off_t at) { \
        CALL(ssize_t, #name, WRITE, is_fd_below(fd), -1, real(fd, data, part(fate, nbytes), at), note_write(fd, at, result)); \
    }
PWRITE(pwrite)
PWRITE(pwrite64)
/* A vector is cut after the first half of its first part. */
static ssize_t cut(int fd, const struct iovec *parts, off_t at) {
    for (; parts->iov_len == 0; parts++) {}
    size_t nbytes = (parts->iov_len + 1) / 2;
    return at < 0 ? raw(SYS_write, fd, (long)parts->iov_base, nbytes, 0)
                  : raw(SYS_pwrite64, fd, (long)parts->iov_base, nbytes, at);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    CALL(ssize_t, "writev", WRITE, is_fd_below(fd), -1, fate == HALF ? cut(fd, parts, -1) : real(fd, parts, count),
         note_write(fd, HERE(fd), result));
}
#define PWRITEV(name) \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t at) { \
        CALL(ssize_t, #name, WRITE, is_fd_below(fd), -1, fate == HALF ? cut(fd, parts, at) : real(fd, parts, count, at), \
             note_write(fd, at, result)); \
    }
PWRITEV(pwritev)
PWRITEV(pwritev64)
#define PWRITEV2(name) \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t at, int flags) { \
        CALL(ssize_t, #name, WRITE, is_fd_below(fd), -1, \
             fate == HALF ? cut(fd, parts, at) : real(fd, parts, count, at, flags), note_write(fd, at, result)); \
    }
PWRITEV2(pwritev2)
PWRITEV2(pwritev64v2) /* what os.pwritev calls */
/* What is recorded is written through at once: the writes that a buffer makes later do not come by here. */
static void note_stream(FILE *file, size_t nbytes) {
    if (fflush(file) != 0) abort();
    note_write(fileno(file), ftello(file) - (off_t)nbytes, nbytes);
}
size_t fwrite(const void *data, size_t itemsize, size_t count, FILE *file) {
    CALL(size_t, "fwrite", WRITE, is_fd_below(fileno(file)), 0, real(data, itemsize, part(fate, count), file),
         note_stream(file, result * itemsize));
}
ssize_t copy_file_range(int from, off_t *from_at, int to, off_t *to_at, size_t nbytes, unsigned flags) {
    CALL(ssize_t, "copy_file_range", WRITE, is_fd_below(to), -1, real(from, from_at, to, to_at, part(fate, nbytes), flags),
         note_write(to, to_at ? *to_at - result : HERE(to), result));
}
#define SENDFILE(name) \
    ssize_t name(int to, int from, off_t *at, size_t nbytes) { \
        CALL(ssize_t, #name, WRITE, is_fd_below(to), -1, real(to, from, at, part(fate, nbytes)), \
             note_write(to, HERE(to), result)); \
    }
SENDFILE(sendfile)
SENDFILE(sendfile64)

#define SYNC(name) \
    int name(int fd) { \
        CALL(int, #name, OTHER, is_fd_below(fd), -1, real(fd), if (result == 0) note("sync", inode_of(fd), 0, "", "", "", 0)); \
    }
SYNC(fsync)
SYNC(fdatasync)
/* A file that becomes shorter takes no room. */
static int does_truncate(int fd, off_t nbytes) {
    struct stat status;
    return raw(SYS_fstat, fd, (long)&status, 0, 0) == 0 && nbytes <= status.st_size ? OTHER : CREATE;
}
#define TRUNCATE(name) \
    int name(int fd, off_t nbytes) { \
        CALL(int, #name, does_truncate(fd, nbytes), is_fd_below(fd), -1, real(fd, nbytes), \
             if (result == 0) note("truncate", inode_of(fd), nbytes, "", "", "", 0)); \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)
#define UNKNOWN(fd) note("unknown", inode_of(fd), 0, "", "", "", 0)
#define FALLOCATE(name) \
    int name(int fd, int mode, off_t at, off_t nbytes) { \
        CALL(int, #name, CREATE, is_fd_below(fd), -1, real(fd, mode, at, nbytes), UNKNOWN(fd)); \
    }
FALLOCATE(fallocate)
FALLOCATE(fallocate64)
#define POSIX_FALLOCATE(name) \
    int name(int fd, off_t at, off_t nbytes) { \
        CALL(int, #name, CREATE, is_fd_below(fd), errno, real(fd, at, nbytes), UNKNOWN(fd)); \
    }
POSIX_FALLOCATE(posix_fallocate)
POSIX_FALLOCATE(posix_fallocate64)

static void note_mode(int result, unsigned long inode, mode_t mode) {
    if (result == 0) note("chmod", inode, mode, "", "", "", 0);
}
int fchmod(int fd, mode_t mode) {
    CALL(int, "fchmod", OTHER, is_fd_below(fd), -1, real(fd, mode), note_mode(result, inode_of(fd), mode));
}
int chmod(const char *path, mode_t mode) {
    CALL(int, "chmod", OTHER, is_below(path), -1, real(path, mode), note_mode(result, inode_at(AT_FDCWD, path), mode));
}
int fchmodat(int at, const char *path, mode_t mode, int flags) {
    CALL(int, "fchmodat", OTHER, is_at_below(at, path), -1, real(at, path, mode, flags),
         note_mode(result, inode_at(at, path), mode));
}

#define IF_DONE(noted) \
    if (result == 0) noted

int rename(const char *old, const char *new) {
    CALL(int, "rename", OTHER, is_at_below(AT_FDCWD, new), -1, real(old, new),
         IF_DONE(note_two("rename", AT_FDCWD, old, AT_FDCWD, new)));
}
int renameat(int old_at, const char *old, int new_at, const char *new) {
    CALL(int, "renameat", OTHER, is_at_below(new_at, new), -1, real(old_at, old, new_at, new),
         IF_DONE(note_two("rename", old_at, old, new_at, new)));
}
int link(const char *old, const char *new) {
    CALL(int, "link", CREATE, is_at_below(AT_FDCWD, new), -1, real(old, new), IF_DONE(note_entry("link", AT_FDCWD, new)));
}
int linkat(int old_at, const char *old, int new_at, const char *new, int flags) {
    CALL(int, "linkat", CREATE, is_at_below(new_at, new), -1, real(old_at, old, new_at, new, flags),
         IF_DONE(note_entry("link", new_at, new)));
}
static void note_symlink(const char *target, int at, const char *path) {
    char name[PATH_MAX];
    note("symlink", inode_at(at, path), 0, name_at(at, path, name), target, "", 0);
}
int symlink(const char *target, const char *path) {
    CALL(int, "symlink", CREATE, is_at_below(AT_FDCWD, path), -1, real(target, path),
         IF_DONE(note_symlink(target, AT_FDCWD, path)));
}
int symlinkat(const char *target, int at, const char *path) {
    CALL(int, "symlinkat", CREATE, is_at_below(at, path), -1, real(target, at, path), IF_DONE(note_symlink(target, at, path)));
}
int mkdir(const char *path, mode_t mode) {
    CALL(int, "mkdir", CREATE, is_at_below(AT_FDCWD, path), -1, real(path, mode),
         IF_DONE(note_entry("mkdir", AT_FDCWD, path)));
}
int mkdirat(int at, const char *path, mode_t mode) {
    CALL(int, "mkdirat", CREATE, is_at_below(at, path), -1, real(at, path, mode), IF_DONE(note_entry("mkdir", at, path)));
}
int unlink(const char *path) {
    CALL(int, "unlink", REMOVE, is_at_below(AT_FDCWD, path), -1, real(path), IF_DONE(note_entry("unlink", AT_FDCWD, path)));
}
int unlinkat(int at, const char *path, int flags) {
    CALL(int, "unlinkat", REMOVE, is_at_below(at, path), -1, real(at, path, flags), IF_DONE(note_entry("unlink", at, path)));
}
int rmdir(const char *path) {
    CALL(int, "rmdir", REMOVE, is_at_below(AT_FDCWD, path), -1, real(path), IF_DONE(note_entry("unlink", AT_FDCWD, path)));
}

#define MODE_OF(last) \
    mode_t mode = 0; \
    bool is_unnamed = (flags & O_TMPFILE) == O_TMPFILE; \
    bool makes = (flags & O_CREAT) != 0 || is_unnamed; \
    if (makes) { \
        va_list rest; \
        va_start(rest, last); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }
static void note_open(int fd, int at, const char *path, int flags, bool was_there) {
    char name[PATH_MAX];
    if (fd < 0) return;
    if ((flags & O_TMPFILE) == O_TMPFILE) note("create", inode_of(fd), mode_of(fd), "", "", "", 0);
    else if (!was_there) note("create", inode_of(fd), mode_of(fd), name_at(at, path, name), "", "", 0);
    else if (flags & O_TRUNC) note("truncate", inode_of(fd), 0, "", "", "", 0);
}
#define OPEN_CALL(name, at, path, counts, call) \
    bool was_there = log_fd >= 0 && inode_at(at, path) != 0; \
    CALL(int, name, makes ? CREATE : LOOK, counts, -1, call, note_open(result, at, path, flags, was_there))
#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        MODE_OF(flags) \
        OPEN_CALL(#name, AT_FDCWD, path, is_at_below(AT_FDCWD, path), real(path, flags, mode)); \
    }
OPEN(open)
OPEN(open64)
#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        MODE_OF(flags) \
        OPEN_CALL(#name, at, path, is_at_below(at, path), real(at, path, flags, mode)); \
    }
OPENAT(openat)
OPENAT(openat64)

/* milblob exchanges directories, and opens files beneath one, by system calls of their own. */
static void note_exchange(const long *a) {
    char one[PATH_MAX], two[PATH_MAX];
    if (a[4] != RENAME_EXCHANGE) {
        note_two("rename", a[0], (const char *)a[1], a[2], (const char *)a[3]);
        return;
    }
    note("exchange", inode_at(a[2], (const char *)a[3]), inode_at(a[0], (const char *)a[1]),
         name_at(a[0], (const char *)a[1], one), name_at(a[2], (const char *)a[3], two), "", 0);
}
long syscall(long number, ...) {
    long a[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(rest, long);
    va_end(rest);
    bool renames = number == SYS_renameat2 && is_at_below(a[2], (const char *)a[3]);
    bool opens = false;
#ifdef SYS_openat2
    opens = number == SYS_openat2 && is_at_below(a[0], (const char *)a[1]);
#endif
    opens = opens || (number == SYS_statx && is_at_below(a[0], (const char *)a[1]));
    CALL(long, "syscall", opens ? LOOK : OTHER, renames || opens, -1, real(number, a[0], a[1], a[2], a[3], a[4], a[5]),
         IF_DONE(note_exchange(a)));
}

/* ---------------------------------------------------------------------------------------------------------- looking */

#define STAT(name, path_or_fd, type, counts) \
    int name(path_or_fd, struct type *status) { LOOKING(int, #name, counts, -1, real(it, status)); }
STAT(stat, const char *it, stat, is_at_below(AT_FDCWD, it))
STAT(stat64, const char *it, stat64, is_at_below(AT_FDCWD, it))
STAT(lstat, const char *it, stat, is_at_below(AT_FDCWD, it))
STAT(lstat64, const char *it, stat64, is_at_below(AT_FDCWD, it))
STAT(fstat, int it, stat, is_fd_below(it))
STAT(fstat64, int it, stat64, is_fd_below(it))
#define XSTAT(name, path_or_fd, counts) \
    int name(int version, path_or_fd, struct stat64 *status) { LOOKING(int, #name, counts, -1, real(version, it, status)); }
XSTAT(__xstat64, const char *it, is_at_below(AT_FDCWD, it))
XSTAT(__lxstat64, const char *it, is_at_below(AT_FDCWD, it))
XSTAT(__fxstat64, int it, is_fd_below(it))
#define FSTATAT(name, type) \
    int name(int at, const char *path, struct type *status, int flags) { \
        LOOKING(int, #name, is_at_below(at, path), -1, real(at, path, status, flags)); \
    }
FSTATAT(fstatat, stat)
FSTATAT(fstatat64, stat64)
int statx(int at, const char *path, int flags, unsigned mask, struct statx *status) {
    LOOKING(int, "statx", is_at_below(at, path), -1, real(at, path, flags, mask, status));
}
int access(const char *path, int mode) {
    LOOKING(int, "access", is_at_below(AT_FDCWD, path), -1, real(path, mode));
}
int faccessat(int at, const char *path, int mode, int flags) {
    LOOKING(int, "faccessat", is_at_below(at, path), -1, real(at, path, mode, flags));
}
ssize_t readlink(const char *path, char *to, size_t nbytes) {
    LOOKING(ssize_t, "readlink", is_at_below(AT_FDCWD, path), -1, real(path, to, nbytes));
}
ssize_t readlinkat(int at, const char *path, char *to, size_t nbytes) {
    LOOKING(ssize_t, "readlinkat", is_at_below(at, path), -1, real(at, path, to, nbytes));
}
DIR *opendir(const char *path) { LOOKING(DIR *, "opendir", is_at_below(AT_FDCWD, path), NULL, real(path)); }
DIR *fdopendir(int fd) { LOOKING(DIR *, "fdopendir", is_fd_below(fd), NULL, real(fd)); }
struct dirent64 *readdir64(DIR *directory) {
    LOOKING(struct dirent64 *, "readdir64", is_fd_below(dirfd(directory)), NULL, real(directory));
}
int flock(int fd, int how) { LOOKING(int, "flock", is_fd_below(fd), -1, real(fd, how)); }
#define MMAP(name) \
    void *name(void *at, size_t nbytes, int protection, int flags, int fd, off_t offset) { \
        bool writes = fd >= 0 && (flags & MAP_SHARED) && (protection & PROT_WRITE); \
        CALL(void *, #name, writes ? CREATE : LOOK, fd >= 0 && is_fd_below(fd), MAP_FAILED, \
             real(at, nbytes, protection, flags, fd, offset), UNKNOWN(fd)); \
    }
MMAP(mmap)
MMAP(mmap64)
ssize_t read(int fd, void *data, size_t nbytes) {
    CALL(ssize_t, "read", READ, is_fd_below(fd), -1, real(fd, data, part(fate, nbytes)), );
}
#define PREAD(name) \
    ssize_t name(int fd, void *data, size_t nbytes, off_t at) { \
        CALL(ssize_t, #name, READ, is_fd_below(fd), -1, real(fd, data, part(fate, nbytes), at), ); \
    }
PREAD(pread)
PREAD(pread64)
/* A descriptor is gone also if close fails. */
int close(int fd) {
    NEXT(int, "close");
    int fate = meet("close", CLOSE, is_fd_below(fd));
    int result = real(fd);
    if (fate == STOP) errno = plan.code;
    after(fate);
    return fate == STOP ? -1 : result;
}
