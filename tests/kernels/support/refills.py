"""Looks in machine code for bulk copies, and barriers and arrivals in front of them, that may overtake a load.

linear*.cu and experts.cu refill shared memory that they have read. A copy does not wait for loads that are under
way; what keeps it behind them is that each load's result is used by an earlier instruction, which waits for it.
"""

import re

_LINE = re.compile(r"\s*/\*([0-9a-f]{4,5})\*/\s+(?:\{\s*)?(.*?)\s*;")
_LABEL = re.compile(r"\s*(\.L_x_\d+):")
_TARGET = re.compile(r"\(?(\.L_x_\d+)\)?")
_REGISTER = re.compile(r"\bR(\d+)\b")
_MATRIX_WIDTHS = (4, 2, 4)  # registers of the operands of m16n8k16, the result left out
_NO_RESULT = (
    "ST",
    "BRA",
    "BAR",
    "RED",
    "SYNCS.ARRIVE",
    "UBLKCP",
    "LDGSTS",
    "WARPSYNC",
    "ISETP",
    "FSETP",
    "R2UR",
    "EXIT",
)


def _parse(sass):
    """([(predicated, instruction)], {label: index}) of one kernel in `nvdisasm`'s output."""
    code, labels = [], {}
    for line in sass.splitlines():
        if found := _LABEL.match(line):
            labels[found[1]] = len(code)
        elif found := _LINE.match(line):
            plain = re.sub(r"^@!?U?P\w+\s+", "", found[2])
            code.append((plain != found[2], plain))
    return code, labels


def _registers(instruction):
    """Numbers of the registers that it writes, and of those that it reads (some of a wide operand's are enough)."""
    name, _, rest = instruction.partition(" ")
    operands = [operand.strip() for operand in rest.split(",")]
    has_result = bool(operands) and re.match(r"R\d+\b", operands[0]) and not name.startswith(_NO_RESULT)
    written = set()
    if has_result:
        first = int(_REGISTER.match(operands[0])[1])
        wide = 4 if ".128" in name or name.startswith("HMMA") else 2 if ".64" in name or ".WIDE" in name else 1
        written = set(range(first, first + wide))
        operands = operands[1:]
    read = set()
    for i, operand in enumerate(operands):
        wide = _MATRIX_WIDTHS[i] if name.startswith("HMMA") and i < 3 else 1
        for found in _REGISTER.finditer(operand):
            read |= set(range(int(found[1]), int(found[1]) + wide))
    return written, read


def _successors(index, predicated, instruction, labels):
    target = _TARGET.search(instruction) if instruction.startswith(("BRA", "WARPSYNC.COLLECTIVE")) else None
    goes_on = predicated or not instruction.startswith(("BRA", "EXIT", "RET")) or ".DIV" in instruction
    return [*([labels[target[1]]] if target else []), *([index + 1] if goes_on else [])]


def unfinished_loads(sass, checked=("UBLKCP",)):
    """{(load, instruction that begins with one of `checked`)}: on some way through the code nothing that comes before
    the instruction uses what was loaded.
    """
    code, labels = _parse(sass)
    registers = [_registers(instruction) for _, instruction in code]
    pending, faults, queue = {0: frozenset()}, set(), [0]
    while queue:
        index = queue.pop()
        predicated, instruction = code[index]
        state = pending[index]
        if instruction.startswith(checked):
            faults |= {(code[load][1], instruction) for load in state}
        written, read = registers[index]
        state = frozenset(load for load in state if not registers[load][0] & (written | read))
        if instruction.startswith("LDS") and written:  # not of those to RZ, which come with asynchronous copies
            state |= {index}
        for successor in _successors(index, predicated, instruction, labels):
            if successor < len(code) and not (successor in pending and state <= pending[successor]):
                pending[successor] = pending.get(successor, frozenset()) | state
                queue.append(successor)
    return faults
