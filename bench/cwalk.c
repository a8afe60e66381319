/* cwalk.c: the least that has to be done, in C, with nothing made of it: the limits that rows are compared with.
 *
 * Trusts its input, checks nothing that is not needed to walk, and shares no code with milblob. Each function opens and
 * maps the files itself and lets go of them, as the rows beside it do. Compiled at run time by cwalk.py: cc -O2. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    const uint8_t *data;
    uint64_t nbytes;
} file;

static int open_file(const char *path, int advice, file *out) {
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    if (fstat(fd, &status) != 0 || status.st_size == 0) {
        close(fd);
        return -1;
    }
    out->nbytes = (uint64_t)status.st_size;
    void *data = mmap(NULL, out->nbytes, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (data == MAP_FAILED) return -1;
    if (advice != MADV_NORMAL) madvise(data, out->nbytes, advice);
    out->data = data;
    return 0;
}

static void close_file(file *f) { munmap((void *)f->data, f->nbytes); }

static uint64_t load64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

static uint32_t load32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}

/* One pass over bytes in memory: the sum of their 64-bit words. What has to look at every byte cannot be much faster. */
uint64_t cwalk_sum(const uint8_t *bytes, uint64_t nbytes) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i + 8 <= nbytes; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        sum += word;
    }
    return sum;
}

/* Walk the records of a blob v2 file. Returns their number, or -1; *total is the sum of their sizes in bytes. */
int64_t cwalk_records(const char *path, int random, uint64_t *total) {
    file f;
    if (open_file(path, random ? MADV_RANDOM : MADV_NORMAL, &f)) return -1;
    int64_t count = load32(f.data);
    uint64_t at = 64, sum = 0;
    for (int64_t i = 0; i < count; i++) {
        uint64_t nbytes = load64(f.data + at + 8), data = load64(f.data + at + 16);
        if (load32(f.data + at) != 0xDEADBEEFu) count = -1;
        sum += nbytes;
        at = (data + nbytes + 63) & ~(uint64_t)63;
    }
    *total = sum;
    close_file(&f);
    return count;
}

/* One field of a message: the payload of a length-delimited one, the value of a varint. */
typedef struct {
    uint32_t number;
    const uint8_t *data;
    uint64_t value; /* of a varint; of a length-delimited field its length */
} field;

static const uint8_t *varint(const uint8_t *at, uint64_t *value) {
    uint64_t out = 0;
    for (int shift = 0;; shift += 7) {
        out |= (uint64_t)(*at & 0x7f) << shift;
        if (*at++ < 0x80) break;
    }
    *value = out;
    return at;
}

static const uint8_t *next(const uint8_t *at, field *f) {
    uint64_t tag;
    at = varint(at, &tag);
    f->number = (uint32_t)(tag >> 3);
    f->data = at;
    f->value = 0;
    if ((tag & 7) == 0) return varint(at, &f->value);
    if ((tag & 7) == 1) return at + 8;
    if ((tag & 7) == 5) return at + 4;
    f->data = varint(at, &f->value);
    return f->data + f->value;
}

typedef struct {
    const uint8_t *weights;
    uint64_t count, operations, total, elements;
} walk;

/* A tensor type: the product of its dimensions. */
static uint64_t elements(const uint8_t *at, uint64_t nbytes) {
    uint64_t product = 1;
    field f, type, dimension, size;
    for (const uint8_t *end = at + nbytes; at < end;) {
        at = next(at, &f);
        if (f.number != 1) continue;
        for (const uint8_t *in = f.data, *stop = f.data + f.value; in < stop;) {
            in = next(in, &type);
            if (type.number != 3 || type.value == 0) continue;
            next(type.data, &dimension);
            if (dimension.number != 1 || dimension.value == 0) continue;
            next(dimension.data, &size);
            product *= size.value;
        }
    }
    return product;
}

/* A Value {2 type, 5 blobFileValue {2 offset}}. */
static void walk_value(walk *w, const uint8_t *at, uint64_t nbytes) {
    field f, blob, type = {0, NULL, 0};
    const uint8_t *end = at + nbytes;
    while (at < end) {
        at = next(at, &f);
        if (f.number == 2) type = f;
        if (f.number != 5) continue;
        for (const uint8_t *in = f.data, *stop = f.data + f.value; in < stop;) {
            in = next(in, &blob);
            if (blob.number != 2) continue;
            w->count++;
            w->total += load64(w->weights + blob.value + 8);
        }
        w->elements += elements(type.data, type.value);
    }
}

/* A map entry {1 key, 2 value}: the value. */
static field entry(const field *pair) {
    field f, value = {0, pair->data, 0};
    for (const uint8_t *at = pair->data, *end = pair->data + pair->value; at < end;) {
        at = next(at, &f);
        if (f.number == 2) value = f;
    }
    return value;
}

static void walk_block(walk *w, const uint8_t *at, uint64_t nbytes) {
    field op, f, argument, binding;
    for (const uint8_t *end = at + nbytes; at < end;) {
        at = next(at, &op);
        if (op.number != 3) continue;
        w->operations++;
        for (const uint8_t *in = op.data, *stop = op.data + op.value; in < stop;) {
            in = next(in, &f);
            if (f.number == 5) {
                field value = entry(&f);
                walk_value(w, value.data, value.value);
            } else if (f.number == 4) {
                walk_block(w, f.data, f.value);
            } else if (f.number == 2) {
                field value = entry(&f);
                for (const uint8_t *a = value.data, *a_end = value.data + value.value; a < a_end;) {
                    a = next(a, &argument);
                    for (const uint8_t *b = argument.data, *b_end = b + argument.value; b < b_end;) {
                        b = next(b, &binding);
                        if (binding.number == 2) walk_value(w, binding.data, binding.value);
                    }
                }
            }
        }
    }
}

/* Walk a model file and look up each blob value's record. out: blob values, operations, bytes of the records, elements
 * that the Program declares. Returns 0, or -1. */
int64_t cwalk_program(const char *model, const char *weights, uint64_t *out) {
    file m, b;
    field program, function, block;
    if (open_file(model, MADV_NORMAL, &m)) return -1;
    if (open_file(weights, MADV_NORMAL, &b)) return -1;
    walk w = {b.data, 0, 0, 0, 0};
    for (const uint8_t *at = m.data, *end = m.data + m.nbytes; at < end;) {
        at = next(at, &program);
        if (program.number != 502) continue;
        for (const uint8_t *p = program.data, *p_end = p + program.value; p < p_end;) {
            p = next(p, &function);
            if (function.number != 2) continue;
            field body = entry(&function);
            for (const uint8_t *q = body.data, *q_end = q + body.value; q < q_end;) {
                q = next(q, &block);
                if (block.number != 3) continue;
                field value = entry(&block);
                walk_block(&w, value.data, value.value);
            }
        }
    }
    out[0] = w.count, out[1] = w.operations, out[2] = w.total, out[3] = w.elements;
    close_file(&m);
    close_file(&b);
    return 0;
}

/* The bytes of a file that are in the page cache, or -1. */
int64_t cwalk_resident(const char *path) {
    file f;
    if (open_file(path, MADV_NORMAL, &f)) return -1;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), pages = (f.nbytes + page - 1) / page;
    int64_t found = 0;
    unsigned char *map = malloc(pages);
    if (map == NULL || mincore((void *)f.data, f.nbytes, map) != 0) found = -1;
    for (uint64_t i = 0; found >= 0 && i < pages; i++) found += (map[i] & 1) * (int64_t)page;
    free(map);
    close_file(&f);
    return found;
}

/* Read a whole file through a mapping and write half as much: the lower four bytes of every eight. No arithmetic, the
 * same bytes read and written as a cast to half the width. Synced if asked. Returns the bytes written, or -1. */
int64_t cwalk_halve(const char *source, const char *target, int sync) {
    enum { STEP = 1 << 18 };
    file f;
    if (open_file(source, MADV_NORMAL, &f)) return -1;
    int fd = open(target, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    uint32_t *out = malloc(STEP);
    int64_t written = fd < 0 || out == NULL ? -1 : 0;
    for (uint64_t at = 0; written >= 0 && at + 8 <= f.nbytes; at += 2 * STEP) {
        uint64_t count = (f.nbytes - at < 2 * STEP ? f.nbytes - at : 2 * STEP) / 8;
        for (uint64_t i = 0; i < count; i++) out[i] = (uint32_t)load64(f.data + at + 8 * i);
        written = write(fd, out, 4 * count) == (ssize_t)(4 * count) ? written + (int64_t)(4 * count) : -1;
    }
    if (sync && written >= 0 && fsync(fd) != 0) written = -1;
    if (fd >= 0 && close(fd) != 0) written = -1;
    free(out);
    close_file(&f);
    return written;
}
