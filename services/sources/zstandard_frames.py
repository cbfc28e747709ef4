"""Whether a Zstandard file is whole: its decompressor ends silently where a file was cut.

Frame format: RFC 8878, sections 3.1.1 and 3.1.2.
"""

from typing import BinaryIO

import zstandard

_SKIPPABLE = range(0x184D2A50, 0x184D2A60)  # magic numbers of frames that carry no data
_LONGEST_HEADER = 18
_RLE_BLOCK = 1  # one byte, repeated


def require_whole(stream: BinaryIO) -> None:
    """Walk over frames and blocks by their sizes, then return to the start; raises EOFError if the end is missing."""
    size = stream.seek(0, 2)
    position = 0
    while position < size:
        stream.seek(position)
        head = stream.read(_LONGEST_HEADER)
        if int.from_bytes(head[:4], "little") in _SKIPPABLE:
            position += 8 + int.from_bytes(head[4:8], "little")
            continue
        checksum = zstandard.get_frame_parameters(head).has_checksum
        position += zstandard.frame_header_size(head)
        last = False
        while not last:
            stream.seek(position)
            block = stream.read(3)
            if len(block) < 3:
                raise EOFError("the file ends inside a frame")
            fields = int.from_bytes(block, "little")
            last = bool(fields & 1)
            position += 3 + (1 if fields >> 1 & 3 == _RLE_BLOCK else fields >> 3)
        position += 4 if checksum else 0
    if position != size:
        raise EOFError("the file ends inside a block")
    stream.seek(0)
