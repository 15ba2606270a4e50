"""What both generators share: a table over all code points cut into equal blocks that are kept once, and printing it as C."""

CODE_POINTS = 0x110000


def two_stage(values):
    """values [CODE_POINTS] of small integers -> (shift, stage1, stage2): values[c] = stage2[stage1[c >> shift] << shift | c & mask].
    The block size is the one that needs the fewest bytes; stage1 has at most 256 distinct blocks."""
    best = None
    for shift in range(4, 10):
        size = 1 << shift
        blocks, stage1 = {}, []
        for at in range(0, CODE_POINTS, size):
            block = tuple(values[at:at + size])
            stage1.append(blocks.setdefault(block, len(blocks)))
        if len(blocks) > 256:
            continue
        total = len(stage1) + len(blocks) * size
        if best is None or total < best[0]:
            best = (total, shift, stage1, [v for block in blocks for v in block])
    return best[1:]


def c_array(declaration, items, per_line=None, width=138):
    """`declaration = {…};` with as many items a line as fit."""
    lines, line = [], "   "
    for i, item in enumerate(items):
        text = f"{item}," if isinstance(item, int) else f" {item},"
        if len(line) + len(text) > width or (per_line and i and i % per_line == 0):
            lines.append(line)
            line = "   "
        line += text
    lines.append(line)
    return f"{declaration} = {{\n" + "\n".join(lines) + "\n};\n"
