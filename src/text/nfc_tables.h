/* nfc_tables.h: the generated tables of nfc_gen.c, for nfc.c alone. */
#ifndef CALLA_TEXT_NFC_TABLES_H
#define CALLA_TEXT_NFC_TABLES_H

#include <stddef.h>
#include <stdint.h>

enum { NFC_SHIFT = 8, NFC_MASK = (1 << NFC_SHIFT) - 1 };

typedef struct nfc_kind {
    uint8_t combining;  /* Canonical_Combining_Class; 0: a starter */
    uint8_t may_change; /* NFC_Quick_Check is not yes */
} nfc_kind;

typedef struct nfc_decomposition {
    uint32_t whole, first, second; /* second 0: a singleton, which never composes again */
} nfc_decomposition;

extern const uint8_t nfc_block[0x110000 >> NFC_SHIFT];
extern const uint8_t nfc_kind_of[]; /* [blocks][1 << NFC_SHIFT]: index into nfc_kinds; kind 0 is a starter that never changes */
extern const nfc_kind nfc_kinds[];
extern const size_t nfc_n_decompositions;
extern const nfc_decomposition nfc_decompositions[]; /* by whole */
extern const size_t nfc_n_compositions;
extern const uint16_t nfc_compositions[]; /* indices into nfc_decompositions, by (first, second) */

#endif
