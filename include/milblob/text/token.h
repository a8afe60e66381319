/* text/token.h: the cursor over MIL text: white space, single characters, identifiers, whole numbers, strings.
 *
 * Every function returns false after filling `error`, and the parser returns at once. For MB_SYNTAX `detail` is
 * what was expected at `offset` and `got` is the byte found there, or 256 at the end of the text. */
#ifndef MILBLOB_TEXT_TOKEN_H
#define MILBLOB_TEXT_TOKEN_H

#include "milblob/kernels/utf8.h"
#include "milblob/dtype.h"
#include "milblob/text/emit.h"

enum {
    MB_TEXT_MAX_DEPTH = 100, /* types in types and blocks in blocks, counted together */
    MB_TEXT_MAX_RANK = 100,  /* dimensions of a tensor type */
    MB_TEXT_END = 256        /* what mb_text_peek returns at the end */
};

typedef struct mb_text_span {
    uint64_t start;
    uint64_t nbytes;
} mb_text_span;

typedef struct mb_text {
    const uint8_t *text;
    uint64_t nbytes;
    uint64_t at; /* <= nbytes */
    uint32_t depth;
    mb_emit emit;
    mb_error *error;
    /* Where the statements stand: one before those in its blocks, as rows of operations are. More than there is room for
     * are only counted. */
    mb_text_span *statements;
    uint64_t statement_capacity, statement_count;
    /* The tensor type whose literal is being read; one at a time, so it lives here and not on the stack. */
    const mb_dtype *dtype;
    uint64_t rank;
    uint64_t count;    /* the product of the dimensions, when all are known */
    bool count_known;
    uint64_t dims[MB_TEXT_MAX_RANK]; /* UINT64_MAX: unknown */
} mb_text;

/* A piece of the text. */
static inline bool mb_text_fail(mb_text *text, mb_status status, uint64_t offset, uint64_t expected, uint64_t got,
                                const char *detail) {
    mb_fail(text->error, status, offset, expected, got, detail);
    return false;
}

/* Something else was expected at the cursor. */
static inline bool mb_text_want(mb_text *text, const char *detail) {
    uint64_t got = text->at < text->nbytes ? (uint64_t)text->text[text->at] : (uint64_t)MB_TEXT_END;
    return mb_text_fail(text, MB_SYNTAX, text->at, 0, got, detail);
}

/* Is what was written still whole? Asked before written bytes are read back, and once per element and statement. */
static inline bool mb_text_room(mb_text *text) {
    return !text->emit.full || mb_text_fail(text, MB_FULL, text->at, 0, 0, "room for the Program");
}

static inline bool mb_text_deeper(mb_text *text, const char *detail) {
    if (++text->depth <= MB_TEXT_MAX_DEPTH) return true;
    return mb_text_fail(text, MB_DEPTH, text->at, MB_TEXT_MAX_DEPTH, text->depth, detail);
}

/* The next byte that is not white space, not taken; MB_TEXT_END at the end. */
static inline int mb_text_peek(mb_text *text) {
    uint64_t at = text->at;
    for (; at < text->nbytes; at++) {
        uint8_t c = text->text[at];
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r') break;
    }
    text->at = at;
    return at < text->nbytes ? text->text[at] : (int)MB_TEXT_END;
}

static inline bool mb_text_take(mb_text *text, char c, const char *detail) {
    if (mb_text_peek(text) != c) return mb_text_want(text, detail);
    text->at++;
    return true;
}

/* Take c if it is next. */
static inline bool mb_text_try(mb_text *text, char c) {
    if (mb_text_peek(text) != c) return false;
    text->at++;
    return true;
}

static inline bool mb_text_arrow(mb_text *text) {
    if (mb_text_peek(text) == '-' && text->nbytes - text->at >= 2 && text->text[text->at + 1] == '>') {
        text->at += 2;
        return true;
    }
    return mb_text_want(text, "->");
}

static inline bool mb_is_letter(int c) { return (unsigned)((c | 0x20) - 'a') < 26 || c == '_'; }

static inline bool mb_is_digit(int c) { return (unsigned)(c - '0') < 10; }

/* [A-Za-z_][A-Za-z0-9_@]* */
static inline bool mb_text_identifier(mb_text *text, mb_text_span *out, const char *detail) {
    if (!mb_is_letter(mb_text_peek(text))) return mb_text_want(text, detail);
    uint64_t at = text->at, nbytes = text->nbytes;
    const uint8_t *src = text->text;
    while (at < nbytes && (mb_is_letter(src[at]) || mb_is_digit(src[at]) || src[at] == '@')) at++;
    out->start = text->at;
    out->nbytes = at - text->at;
    text->at = at;
    return true;
}

static inline bool mb_text_is(const mb_text *text, mb_text_span span, const char *word) {
    size_t nbytes = strlen(word);
    return span.nbytes == nbytes && memcmp(text->text + span.start, word, nbytes) == 0;
}

/* Take this word. */
static inline bool mb_text_word(mb_text *text, const char *word) {
    mb_text_span span;
    if (!mb_text_identifier(text, &span, word)) return false;
    if (mb_text_is(text, span, word)) return true;
    text->at = span.start;
    return mb_text_want(text, word);
}

/* A whole number of at most `most`. */
static inline bool mb_text_count(mb_text *text, uint64_t most, uint64_t *out, const char *detail) {
    if (!mb_is_digit(mb_text_peek(text))) return mb_text_want(text, detail);
    uint64_t start = text->at, at = start, value = 0;
    for (; at < text->nbytes && mb_is_digit(text->text[at]); at++) {
        uint64_t digit = (uint64_t)(text->text[at] - '0');
        if (value > (UINT64_MAX - digit) / 10) return mb_text_fail(text, MB_RANGE, start, 0, UINT64_MAX, detail);
        value = value * 10 + digit;
    }
    text->at = at;
    if (value > most) return mb_text_fail(text, MB_RANGE, start, 0, value, detail);
    *out = value;
    return true;
}

/* "..." written as the bytes of field. An escape is not seen in any real file; those of C that mean one thing are read.
 * An empty string is left out when `implicit`: that is how proto3 writes a singular string. */
static inline bool mb_text_string(mb_text *text, uint32_t field, bool implicit) {
    if (!mb_text_take(text, '"', "a string")) return false;
    uint64_t before = text->emit.at, mark = mb_emit_begin(&text->emit, field);
    const uint8_t *src = text->text;
    uint64_t nbytes = text->nbytes, at = text->at, run = at; /* [run, at) is read but not written */
    for (;; at++) {
        while (at < nbytes && src[at] != '"' && src[at] != '\\' && src[at] != 0 && src[at] < 0x80) at++;
        text->at = at;
        if (at >= nbytes) return mb_text_want(text, "a closing quote");
        if (src[at] == '"') break;
        if (src[at] >= 0x80) {
            uint32_t sequence = mb_utf8_sequence(src + at, nbytes - at);
            if (sequence == 0 && nbytes - at < 4 && memchr(src + at, '"', (size_t)(nbytes - at)) == NULL) {
                text->at = nbytes; /* the text ends in mid-character: it is short, not badly spelt */
                return mb_text_want(text, "a closing quote");
            }
            if (sequence == 0) return mb_text_fail(text, MB_UTF8, at, 0, src[at], "a string");
            at += sequence - 1;
            continue;
        }
        if (src[at] == 0) return mb_text_want(text, "a closing quote before the NUL byte");
        mb_emit_raw(&text->emit, src + run, at - run);
        text->at = ++at;
        if (at >= nbytes) return mb_text_want(text, "an escaped character");
        uint8_t c = src[at];
        uint8_t meaning = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c == '"' || c == '\\' ? c : 0;
        if (meaning == 0) return mb_text_want(text, "one of \" \\ n t r after a backslash");
        mb_emit_raw(&text->emit, &meaning, 1);
        run = at + 1;
    }
    mb_emit_raw(&text->emit, src + run, at - run);
    text->at = at + 1;
    if (implicit && text->emit.at == mark && !text->emit.full)
        text->emit.at = before;
    else
        mb_emit_end(&text->emit, mark);
    return true;
}

#endif
