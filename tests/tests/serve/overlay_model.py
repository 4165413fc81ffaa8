# A client by libnbd, behind `import nbd`: two connections that change a volume at random, against a model in memory.
# argv: URI, seed, the volume as it is, where to put the model as it is at the last flush.
import random

uri, seed, before, after = argv
rng = random.Random(int(seed))
model = bytearray(open(before, "rb").read())
size = len(model)
# what is changed behind this is not flushed
kept = size - (1 << 20)
handles = [nbd.NBD(), nbd.NBD()]
for h in handles:
    h.connect_uri(uri)
    assert h.get_size() == size and not h.is_read_only() and h.can_multi_conn()
    assert h.can_flush() and h.can_fua() and h.can_trim() and h.can_zero() and h.can_fast_zero()


def place():
    # short and long, at the bounds of chunks and beside them
    length = rng.choice([1, 511, 512, 4096, 65536, 100000, 1 << 20, 3 << 20])
    offset = rng.randrange(kept - length)
    if rng.random() < 0.5:
        offset = offset // 65536 * 65536
    return offset, length


for step in range(400):
    h = rng.choice(handles)
    offset, length = place()
    fua = nbd.CMD_FLAG_FUA if rng.random() < 0.2 else 0
    what = rng.choice(["write", "write", "zero", "fast", "kept", "trim", "read", "read", "flush"])
    if what == "write":
        data = rng.randbytes(length)
        h.pwrite(data, offset, fua)
        model[offset : offset + length] = data
    elif what == "zero" or what == "fast":
        h.zero(length, offset, fua | (nbd.CMD_FLAG_FAST_ZERO if what == "fast" else 0))
        model[offset : offset + length] = bytes(length)
    elif what == "kept":
        try:
            h.zero(length, offset, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO)
            assert False, "room is not had in no time"
        except nbd.Error as e:
            assert e.errno == "ENOTSUP", e
        h.zero(length, offset, fua | nbd.CMD_FLAG_NO_HOLE)
        model[offset : offset + length] = bytes(length)
    elif what == "trim":
        h.trim(length, offset, fua)
        got = h.pread(length, offset)
        # zero, or as it was, chunk by chunk
        for at in range(0, length, 512):
            part = got[at : at + 512]
            was = model[offset + at : offset + at + len(part)]
            if part != was:
                for byte, old in zip(part, was):
                    assert byte == 0 or byte == old, f"step {step}: neither zero nor as it was"
        model[offset : offset + length] = got
    elif what == "flush":
        h.flush()
    # the other connection sees it
    other = handles[0] if h is handles[1] else handles[1]
    got = other.pread(length, offset)
    assert got == model[offset : offset + length], f"step {step}: {what} {offset} {length}"
handles[0].flush()
open(after, "wb").write(model)
handles[1].pwrite(b"not flushed " * 1000, kept)
for errno, call in [
    ("ENOSPC", lambda: handles[0].pwrite(b"ab", size - 1)),
    ("EINVAL", lambda: handles[0].trim(2, size - 1)),
    ("EINVAL", lambda: handles[0].pread(2, size - 1)),
]:
    handles[0].set_strict_mode(0)
    try:
        call()
        assert False, f"{errno} is missing"
    except nbd.Error as e:
        assert e.errno == errno, e
print("done")
