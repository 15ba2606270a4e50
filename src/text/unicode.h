/* unicode.h: what kind of character a code point is, as far as the pre-tokenizer's regex asks.  Unicode 16.0, as the reference has.
 * The tables are generated (tools/unicode/generate_classes.py). */
#ifndef CALLA_TEXT_UNICODE_H
#define CALLA_TEXT_UNICODE_H

#include <stdint.h>

typedef enum unicode_class {
    UNICODE_OTHER,
    UNICODE_LETTER,  /* \p{L} */
    UNICODE_MARK,    /* \p{M} */
    UNICODE_NUMBER,  /* \p{N} */
    UNICODE_SPACE,   /* \s (White_Space) but for the next */
    UNICODE_NEWLINE, /* \r and \n */
    UNICODE_CLASSES
} unicode_class;

enum { UNICODE_CLASS_SHIFT = 7, UNICODE_CLASS_MASK = (1 << UNICODE_CLASS_SHIFT) - 1 };

extern const uint8_t unicode_class_block[0x110000 >> UNICODE_CLASS_SHIFT];
extern const uint8_t unicode_class_value[]; /* [blocks][1 << UNICODE_CLASS_SHIFT]; block 0 is ASCII */

/* cp at most U+10FFFF. */
static inline unicode_class unicode_class_of(uint32_t cp) {
    const unsigned block = unicode_class_block[cp >> UNICODE_CLASS_SHIFT];
    return (unicode_class)unicode_class_value[block << UNICODE_CLASS_SHIFT | (cp & UNICODE_CLASS_MASK)];
}

#endif
