#!/bin/sh
# Writes the four-layer synthetic checkpoint (2.47 GB) to a temporary folder, proves by its hashes that it is the recorded one, runs the
# test on it, holds the layers in fast precision to their limit and deletes it.
# usage: run_synthetic.sh TEST_EXECUTABLE SOURCE_DIR MEASURE_LAYERS
set -eu
dir=$(mktemp -d "${TMPDIR:-/tmp}/calla-synthetic.XXXXXX")
trap 'rm -rf "$dir"' EXIT INT TERM
"${CALLA_PYTHON:-python3}" "$2/tools/make_checkpoint.py" "$dir/synthetic-4layer" --layers 4
(cd "$dir/synthetic-4layer" && sha256sum -c "$2/tests/data/checkpoints/synthetic-4layer.sha256")
"$1" "$dir/synthetic-4layer"
# 3.6e-2 was measured with VNNI and AVX2: this is a guard, not the condition for making fast the default (docs/quality.md)
"$3" "$dir/synthetic-4layer" 512 4e-2
