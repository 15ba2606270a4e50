/* shift_checkpoint.h: the same checkpoint with its data at another alignment. */
#ifndef CALLA_TESTS_SHIFT_CHECKPOINT_H
#define CALLA_TESTS_SHIFT_CHECKPOINT_H

/* Copies the files of the model folder `from` into the folder `to`.  The data of each safetensors file start at `residue` (0 to 15)
 * mod 16 there: its JSON header is padded with spaces, as the format allows.  The published shards start at odd addresses, since MLX
 * does not pad.  Failures end the test. */
void shift_checkpoint(const char *from, const char *to, unsigned residue);

/* The same with each tensor at a multiple of 256 in its file, and the last one's end too. */
void align_checkpoint(const char *from, const char *to);

#endif
