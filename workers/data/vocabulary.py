"""What each token id reads as, for showing rows of a result with their text."""

from transformers import PreTrainedTokenizerFast

from workers.models.tokenizer import tokenizing

_METASPACE = "▁"


def vocabulary_texts(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Text of every token id, leading space kept; bytes that are no whole character read as ``\\xe2``."""
    size = len(tokenizer)
    names = tokenizer.convert_ids_to_tokens(list(range(size)))
    decoder = tokenizer.backend_tokenizer.decoder
    byte_of = byte_of_character() if decoder is not None and "ByteLevel" in str(decoder) else {}
    texts = []
    for token_id, name in enumerate(names):
        if name is None:  # ids need not be without gaps
            texts.append("")
        elif byte_of and all(character in byte_of for character in name):
            texts.append(bytes(map(byte_of.__getitem__, name)).decode("utf-8", "backslashreplace"))
        elif name.startswith(_METASPACE):
            texts.append(name.replace(_METASPACE, " "))
        else:
            with tokenizing(f"The tokenizer cannot decode the token id {token_id}"):
                texts.append(tokenizer.backend_tokenizer.decode([token_id], skip_special_tokens=False) or name)
    return texts


def byte_of_character() -> dict[str, int]:
    """Inverse of GPT-2's spelling of bytes: printable ones stand for themselves, the others follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}
