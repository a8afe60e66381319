/* splice_edits.c: edits of each file as a message; see replay.h for the command line.
 *
 * Edits are taken from the message itself (every field found in a walk down to some depth, as payload or as whole field)
 * and at random. Where the walk takes them the result is built, and its own lengths must fit: a walk over the new message
 * that replaces the same ranges by the old bytes gives the old length again. */
#include "milblob/wire/splice.h"
#include "replay.h"

enum { MAX_EDITS = 40 };

static uint64_t state;

static uint64_t below(uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
}

/* Run a walk with a table that grows from nothing; the caller frees *prefixes. */
static mb_status walk(const uint8_t *data, uint64_t nbytes, const mb_edit *edits, uint64_t count, mb_prefix **prefixes, mb_splice *splice, mb_error *error) {
    mb_level *levels = (mb_level *)exactly(MB_SPLICE_DEPTH * sizeof *levels);
    uint64_t capacity = 0;
    mb_status status;
    for (int pass = 0;; pass++) {
        require(pass < 2, "the count of the first pass is enough for the second");
        *prefixes = (mb_prefix *)exactly(capacity * sizeof **prefixes);
        status = mb_splice_walk(data, 0, nbytes, edits, count, levels, *prefixes, capacity, splice, error);
        if (status != MB_FULL) break;
        require(splice->prefix_count > capacity, "a full table was too small");
        capacity = splice->prefix_count;
        free(*prefixes);
    }
    free(levels);
    require(status == MB_OK || (error->detail != NULL && error->status == status), "an error that has words");
    return status;
}

static uint64_t put(uint8_t *dst, uint64_t value) {
    uint64_t nbytes = 0;
    for (; value >= 0x80; value >>= 7) dst[nbytes++] = (uint8_t)(value | 0x80);
    dst[nbytes++] = (uint8_t)value;
    return nbytes;
}

/* Build the new message with zeros for new bytes, note where they lie, and replace them back. */
static void build(const uint8_t *data, uint64_t nbytes, const mb_edit *edits, uint64_t count, const mb_prefix *prefixes, const mb_splice *splice) {
    uint8_t *made = (uint8_t *)exactly(splice->new_nbytes);
    mb_edit back[MAX_EDITS];
    uint64_t at = 0, out = 0, e = 0, p = 0, changed = 0, empty = 0;
    while (e < count || p < splice->prefix_count) {
        bool is_edit = p == splice->prefix_count || (e < count && edits[e].offset < prefixes[p].offset);
        uint64_t start = is_edit ? edits[e].offset : prefixes[p].offset;
        require(start >= at && start <= nbytes && out <= splice->new_nbytes && start - at <= splice->new_nbytes - out, "prefixes and edits in order and apart");
        memcpy(made + out, data + at, (size_t)(start - at));
        out += start - at;
        at = start;
        if (is_edit) {
            require(edits[e].new_nbytes <= splice->new_nbytes - out, "room for new bytes");
            memset(made + out, 0, (size_t)edits[e].new_nbytes);
            back[e].offset = out;
            back[e].nbytes = edits[e].new_nbytes;
            back[e].new_nbytes = edits[e].nbytes;
            empty += edits[e].new_nbytes == 0;
            out += edits[e].new_nbytes;
            at += edits[e].nbytes;
            e++;
        } else {
            uint8_t prefix[10];
            mb_prefix row = prefixes[p++];
            require(row.nbytes >= 1 && row.nbytes <= 10 && row.nbytes <= nbytes - at, "a prefix inside the message");
            if (row.length != row.new_length) {
                uint64_t length = put(prefix, row.new_length);
                require(length <= splice->new_nbytes - out, "room for a prefix");
                memcpy(made + out, prefix, (size_t)length);
                out += length;
                at += row.nbytes;
                changed++;
            }
        }
    }
    require(nbytes - at == splice->new_nbytes - out, "the new length is that of the pieces");
    memcpy(made + out, data + at, (size_t)(nbytes - at));

    bool whole = true; /* edits of payloads can be found again; whole fields made of zeros cannot */
    for (uint64_t i = 0; i < count; i++) {
        bool payload = false;
        for (uint64_t k = 0; k < splice->prefix_count; k++)
            payload = payload || (prefixes[k].offset + prefixes[k].nbytes == edits[i].offset && prefixes[k].length == edits[i].nbytes);
        whole = whole && payload;
    }
    if (whole && empty == 0) {
        mb_prefix *again;
        mb_splice reverse;
        mb_error error;
        require(walk(made, splice->new_nbytes, back, count, &again, &reverse, &error) == MB_OK, "a new message that can be edited");
        require(reverse.prefix_count == splice->prefix_count, "the same messages on the way back");
        require(changed > 0 || reverse.new_nbytes == nbytes, "the old length again");
        for (uint64_t k = 0; k < reverse.prefix_count; k++) require(again[k].length == prefixes[k].new_length, "lengths of the new message");
        free(again);
    }
    free(made);
}

static void try_edits(const uint8_t *data, uint64_t nbytes, const mb_edit *edits, uint64_t count) {
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    mb_splice splice;
    mb_prefix *prefixes;
    if (walk(data, nbytes, edits, count, &prefixes, &splice, &error) == MB_OK && splice.new_nbytes < (1u << 24))
        build(data, nbytes, edits, count, prefixes, &splice);
    free(prefixes);
}

/* Take edits from a message, in order. */
static uint64_t gather(mb_cursor message, mb_edit *edits, uint64_t count, unsigned depth) {
    static const uint64_t lengths[] = {0, 1, 127, 128, 300, 20000};
    mb_error error;
    while (message.at < message.end && count < MAX_EDITS) {
        mb_wire wire;
        if (mb_read_field(&message, &wire, &error)) return count;
        mb_edit *edit = &edits[count];
        uint64_t choice = below(12);
        edit->new_nbytes = lengths[below(sizeof lengths / sizeof lengths[0])];
        if (choice == 0) {
            edit->offset = (uint64_t)(wire.tag - message.base);
            edit->nbytes = (uint64_t)(message.at - wire.tag);
            count++;
        } else if (choice < 3 && wire.type == MB_WIRE_BYTES && wire.nbytes > 0) {
            edit->offset = (uint64_t)(wire.data - message.base);
            edit->nbytes = wire.nbytes;
            count++;
        } else if (wire.type == MB_WIRE_BYTES && depth < 30) {
            count = gather(mb_cursor_into(&message, &wire), edits, count, depth + 1);
        }
    }
    return count;
}

static void check(const uint8_t *data, uint64_t nbytes) {
    mb_edit edits[MAX_EDITS];
    memset(edits, 0, sizeof edits);
    state = nbytes * 31 + (nbytes > 0 ? data[nbytes / 2] : 0);
    try_edits(data, nbytes, edits, 0);
    for (int round = 0; round < 4; round++) try_edits(data, nbytes, edits, gather(mb_cursor_of(data, data, nbytes), edits, 0, 0));
    for (int round = 0; round < 8; round++) { /* ranges at random, most of them wrong */
        uint64_t count = 1 + below(3), at = 0;
        for (uint64_t i = 0; i < count; i++) {
            edits[i].offset = at + below(nbytes - at + 3 < 40 ? nbytes - at + 3 : 40);
            edits[i].nbytes = below(20);
            edits[i].new_nbytes = below(8) == 0 ? UINT64_MAX - below(3) : below(300);
            at = edits[i].offset < nbytes ? edits[i].offset : nbytes;
        }
        try_edits(data, nbytes, edits, count);
    }
}
