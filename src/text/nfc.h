/* nfc.h: normalization form C of Unicode 9.0, the version of the model's own tokenizer: characters that were assigned later neither
 * decompose nor compose (U+105D2 U+0307 stay apart).  Time and memory grow with the text, whatever it holds. */
#ifndef CALLA_TEXT_NFC_H
#define CALLA_TEXT_NFC_H

#include "base/buffer.h"

/* Normalizes s [n], valid UTF-8.  *text [*n_text] is s itself if a quick look shows it to be normal, else it lies in *out, which is
 * overwritten.  false: out of memory. */
bool nfc_normalize(const char *s, size_t n, buffer *out, const char **text, size_t *n_text);

#endif
