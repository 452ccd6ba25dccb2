"""Looks in Hopper's machine code for writes to registers that a matrix instruction in flight still reads.

Triton 3.6 can let `wgmma` of one step of a loop run into the next while that step already overwrites the operands which
it takes from registers (triton-lang/triton issue 9433). Results are then wrong now and then, by a little.
"""

import re

_LINE = re.compile(r"\s*/\*([0-9a-f]{4,5})\*/\s+(.*?)\s*;")
_LABEL = re.compile(r"\s*(\.L_x_\d+):")
_NO_RESULT = ("ST", "BRA", "BAR", "LDGSTS", "RED", "EXIT", "DEPBAR", "LDGDEPBAR", "ISETP", "FSETP", "PLOP3")


def _parse(sass):
    """([(address, instruction)], {label: address})"""
    code, labels, waiting = [], {}, []
    for line in sass.splitlines():
        if found := _LABEL.match(line):
            waiting.append(found[1])
        elif found := _LINE.match(line):
            address = int(found[1], 16)
            code.append((address, re.sub(r"^@!?U?P\w+\s+", "", found[2])))
            labels |= dict.fromkeys(waiting, address)
            waiting = []
    return code, labels


def _written(instruction):
    """Numbers of the registers that it writes."""
    name, _, operands = instruction.partition(" ")
    first = re.match(r"(?:U?P\w+,\s*)?R(\d+)\b", operands.strip())
    if first is None or name.startswith(_NO_RESULT):
        return set()
    wide = 4 if ".128" in name or name.endswith(".4") else 2 if ".64" in name or ".WIDE" in name else 1
    if name == "CS2R":
        wide = 2
    return set(range(int(first[1]), int(first[1]) + wide))


def _operands(instruction):
    """Registers of the A operand of a matrix instruction: 4, or none if it is in shared memory."""
    found = re.match(r"HGMMA\S*\s+R\d+,\s*R(\d+)", instruction)
    return set(range(int(found[1]), int(found[1]) + 4)) if found else set()


def _scan(body):
    """Writes into operands in flight, over two rounds of a loop."""
    groups, group, writes = [], [], []
    for address, instruction in body * 2:
        if instruction.startswith("HGMMA"):
            group.append(_operands(instruction))
            if "gsb0" in instruction:
                groups.append(group)
                group = []
        elif instruction.startswith("WARPGROUP.DEPBAR"):
            pending = int(re.search(r"gsb0, (0x[0-9a-f]+)", instruction)[1], 16)
            groups = groups[len(groups) - pending :] if pending else []
        elif any(_written(instruction) & operands for operands in sum(groups, group)):
            writes.append(f"{address:#x} {instruction}")
    return writes


def overwritten_operands(sass):
    """Instructions of loops in `nvdisasm`'s output that write operands of matrix instructions in flight."""
    code, labels = _parse(sass)
    found = []
    for end, instruction in code:
        target = re.match(r"BRA.*\((\.L_x_\d+)\)", instruction)
        start = labels.get(target[1], end + 1) if target else end + 1
        if start <= end:
            found += _scan([entry for entry in code if start <= entry[0] <= end])
    return found
