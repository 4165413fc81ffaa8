#!/usr/bin/env python3
"""A second reader of the repository format, written from docs/format.md alone.

It restores a backup from a local repository directory into a file and checks everything that it follows: records, pages,
chunk ids, stubs of moved packs. It is slow and simple on purpose; its only use is to hold the document to its word.

    reader.py REPOSITORY [--key-file FILE | --password TEXT] list
    reader.py REPOSITORY [...] restore VOLUME BACKUP_ID OUTPUT
    reader.py REPOSITORY [...] attachment VOLUME BACKUP_ID NAME OUTPUT
    reader.py REPOSITORY check-packs
    reader.py DOCUMENT check-vectors
"""
import argparse
import json
import os
import sys
from pathlib import Path

import blake3 as b3
import xxhash
import zstandard
from argon2.low_level import Type, hash_secret_raw
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ZERO_ENTRY = 65535
STUB_HOPS_MAX = 64


class Refused(Exception):
    """An object is not what the document says."""


def need(condition, what):
    if not condition:
        raise Refused(what)


def keyed(key, message):
    return b3.blake3(message, key=key).digest()


def derive(context, material):
    return b3.blake3(material, derive_key_context=context).digest()


def escaped(volume):
    """A volume's name as it stands in object keys."""
    plain = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
    one = lambda i, byte: chr(byte) if byte in plain or (byte == 0x2e and i > 0) else f"={byte:02X}"
    return "".join(one(i, byte) for i, byte in enumerate(volume.encode()))


class Cursor:
    """Little-endian fields in order; `end` refuses what is left over."""

    def __init__(self, data, what):
        self.data, self.at, self.what = data, 0, what

    def take(self, n):
        need(self.at + n <= len(self.data), f"{self.what}: too short")
        self.at += n
        return self.data[self.at - n:self.at]

    def u(self, n):
        return int.from_bytes(self.take(n), "little")

    def end(self):
        need(self.at == len(self.data), f"{self.what}: bytes left over")


class Repository:
    def __init__(self, root, key_file=None, password=None):
        self.root = Path(root)
        try:
            self.open("format", key_file, password)
        except Exception as first:  # also what is no JSON, and no hex
            try:
                self.open("format-copy", key_file, password)
            except Exception:
                raise first if isinstance(first, Refused) else Refused(f"format: {first}") from first
        for path in sorted(self.root.glob("features/read/*")):
            raise Refused(f"a restore needs the feature {path.name}, which is not in the document")

    def open(self, key, key_file, password):
        """Both copies are sealed for the key of the first."""
        clear, check = self.record_parts(self.get(key), b"MVRFORM1", "format", bytes(16))
        form = json.loads(clear)
        need(form["type"] == "repository" and form["format"] == 1, "format: another version")
        need(form["required_features"] == 1, "format: unknown features")
        self.id = bytes.fromhex(form["repository_id"])
        self.chunk, self.group, self.fanout = (form[k] for k in ("chunk_bytes", "entry_chunks", "page_fanout"))
        need(form["encryption"] in ("aes-256-gcm", "none"), "format: encryption")
        self.seal = 1 if form["encryption"] == "aes-256-gcm" else 0
        master = bytes.fromhex(form["clear_master_key"]) if self.seal == 0 else self.unwrap(key_file, password)
        key = lambda name: derive(f"mover repository v1 {name}", master)
        self.chunk_key, self.page_key = key("chunk id"), key("page id")
        self.data_key, self.meta_key = key("data"), key("metadata")
        self.segment_key = key("segment")
        check(key("format"), 0)

    def get(self, key):
        try:
            return (self.root / key).read_bytes()
        except FileNotFoundError:
            return None

    def record_parts(self, raw, magic, key, repository_id):
        """Splits a record; gives the clear part, and a function that checks it and gives the body."""
        need(raw is not None, f"{key}: absent")
        c = Cursor(raw, key)
        need(c.take(8) == magic, f"{key}: magic")
        need(c.u(2) == 1, f"{key}: version")
        seal = c.u(1)
        need(seal in (0, 1) and c.u(1) == 0 and c.u(4) == 0, f"{key}: header")
        salt = c.take(32)
        clear_len, reserved, body_len = c.u(4), c.u(4), c.u(8)
        need(reserved == 0, f"{key}: reserved")
        clear = c.take(clear_len)
        head = raw[:64 + clear_len]
        body, tag = c.take(body_len), c.take(16)
        c.end()
        name = key.encode()
        associated = repository_id + len(name).to_bytes(2, "little") + name + head

        def check(key_bytes, want_seal):
            need(seal == want_seal, f"{key}: seal")
            record_key = keyed(key_bytes, salt)
            if seal == 1:
                return AESGCM(record_key).decrypt(bytes(12), body + tag, associated)
            need(keyed(record_key, associated + body)[:16] == tag, f"{key}: checksum")
            return body

        self.last_salt = salt
        return clear, check

    def unwrap(self, key_file, password):
        for path in sorted((self.root / "keys").iterdir()):
            clear, check = self.record_parts(path.read_bytes(), b"MVRKEYW1", f"keys/{path.name}", self.id)
            head = json.loads(clear)
            if head["kind"] == "key-file" and key_file is not None:
                data = Path(key_file).read_bytes()
                data = data if len(data) == 32 else bytes.fromhex(data.decode().strip())
                wrapping = derive("mover repository v1 key file", data)
            elif head["kind"] == "passphrase" and password is not None:
                kdf = head["kdf"]
                need(kdf["name"] == "argon2id", "kdf")
                wrapping = hash_secret_raw(password.encode(), self.last_salt, kdf["passes"], kdf["memory_kib"],
                                           kdf["lanes"], 32, Type.ID, 19)
            else:
                continue
            try:
                return check(wrapping, 1)
            except Exception:  # another key's wrapping
                continue
        raise Refused("no key opens this repository")

    def record(self, key, magic):
        raw = self.get(key)
        return None if raw is None else self.record_parts(raw, magic, key, self.id)[1](self.meta_key, self.seal)

    # packs

    def entry(self, pack, kind, offset, stored_len, raw):
        head, payload, tag = raw[:8], raw[8:stored_len - 16], raw[stored_len - 16:stored_len]
        need(len(raw) >= stored_len, f"pack {pack.hex()}: entry at {offset} is cut off")
        codec, got_kind = head[0], head[1]
        count, plain_len = int.from_bytes(head[2:4], "little"), int.from_bytes(head[4:8], "little")
        need(got_kind == kind, f"pack {pack.hex()}: kind of the entry at {offset}")
        pack_key = keyed(self.data_key, b"pack" + pack)
        associated = pack + offset.to_bytes(8, "little") + head
        if self.seal == 1:
            nonce = offset.to_bytes(8, "little") + bytes(4)
            payload = AESGCM(pack_key).decrypt(nonce, payload + tag, associated)
        else:
            need(keyed(pack_key, associated + payload)[:16] == tag, f"pack {pack.hex()}: checksum at {offset}")
        if codec == 1:
            payload = zstandard.ZstdDecompressor().decompress(payload, max_output_size=plain_len)
        else:
            need(codec == 0, "codec")
        need(len(payload) == plain_len, f"pack {pack.hex()}: plain length at {offset}")
        return count, payload

    def header(self, raw, pack, kind):
        c = Cursor(raw, f"pack {pack.hex()}: header")
        need(c.take(8) == b"MVRPACK1" and c.u(2) == 1, f"pack {pack.hex()}: magic or version")
        need(c.u(1) == kind and c.u(1) == self.seal and c.u(4) == 0, f"pack {pack.hex()}: kind, seal or epoch")
        need(c.take(32) == pack and c.take(16) == self.id, f"pack {pack.hex()}: it is another one")

    def read_entry(self, location, kind):
        """The entry that a location names, through stubs if its pack has moved."""
        seen = set()
        for _ in range(STUB_HOPS_MAX + 1):
            pack, entry, offset, stored_len, index = location
            name = pack.hex()
            path = self.root / f"packs/{name[:2]}/{name}"
            if path.exists():
                with open(path, "rb") as f:
                    self.header(f.read(64), pack, kind)
                    f.seek(offset)
                    return self.entry(pack, kind, offset, stored_len, f.read(stored_len)), index
            need(pack not in seen, f"pack {name}: stubs lead in a circle")
            seen.add(pack)
            location = self.moved(pack, entry, index)
        raise Refused("too many stubs")

    def moved(self, pack, entry, index):
        body = self.record(f"moved/{pack.hex()}", b"MVRMOVD1")
        need(body is not None, f"pack {pack.hex()}: gone, and no stub says where to")
        c = Cursor(body, f"moved/{pack.hex()}")
        need(c.take(32) == pack, "stub of another pack")
        packs = [c.take(32) for _ in range(c.u(4))]
        rows = {}
        for _ in range(c.u(4)):
            old = (c.u(4), c.u(2))
            rows[old] = (packs[c.u(4)], c.u(4), c.u(4), c.u(4), c.u(2))
        c.end()
        need((entry, index) in rows, f"pack {pack.hex()}: the stub does not name entry {entry}")
        return rows[(entry, index)]

    # maps

    def page(self, ref_id, location, level):
        (count, plain), _ = self.read_entry(location, 2)
        need(count == 1, "page entry count")
        c = Cursor(plain, f"page {ref_id.hex()}")
        need(c.u(1) == level and c.u(1) == 0, "page level")
        children = c.u(2)
        need(1 <= children <= self.fanout, "page child count")
        packs_n, entries_n = c.u(2), c.u(2)
        packs = [c.take(32) for _ in range(packs_n)]
        entries = [(packs[c.u(2)], c.u(4), c.u(4), c.u(4)) for _ in range(entries_n)]
        out, message = [], bytes([level]) + children.to_bytes(2, "little")
        for _ in range(children):
            at = c.u(2)
            if at == ZERO_ENTRY:
                out.append(None)
                message += b"\0"
                continue
            index, child = c.u(2), c.take(32)
            out.append((child, entries[at] + (index,)))
            message += b"\1" + child
        c.end()
        need(out[-1] is not None, "page ends with Zero")
        used = list(dict.fromkeys(child[1][:4] for child in out if child is not None))
        need(used == entries and list(dict.fromkeys(e[0] for e in used)) == packs, "page tables: order of use")
        need(keyed(self.page_key, message) == ref_id, f"page {ref_id.hex()}: id")
        return out

    def leaves(self, ref, level, first):
        """(chunk number, (id, location)) of every chunk that is not Zero."""
        if ref is None:
            return
        for i, child in enumerate(self.page(ref[0], ref[1], level)):
            at = first + i * self.fanout ** level
            if child is None:
                continue
            if level == 0:
                yield at, child
            else:
                yield from self.leaves(child, level - 1, at)

    # backups

    def backups(self):
        found, unreadable = {}, {}
        for path in sorted(self.root.glob("backups/*/*/*")):
            key = str(path.relative_to(self.root))
            if (self.root / key.replace("backups/", "forgotten/", 1)).exists():
                continue
            try:
                body = json.loads(self.record(key, b"MVRMANI1"))
            except Exception as e:  # also what does not decrypt, and what is no JSON
                unreadable[tuple(key.split("/")[1:3])] = f"{key} cannot be read: {e!r}"
                continue
            if body["type"] == "fence":
                continue
            need(body["type"] == "backup" and body["format"] == 1, f"{key}: type")
            name = f"{escaped(body['volume'])}/{body['backup_id']}/{body['attempt']}"
            need(key == f"backups/{name}", f"{key}: it is of another backup")
            of_id = found.setdefault((body["volume"], body["backup_id"]), body)
            if of_id["attempt"] < body["attempt"]:
                found[(body["volume"], body["backup_id"])] = body
        readable = {(escaped(volume), backup_id) for volume, backup_id in found}
        for backup, why in unreadable.items():
            need(backup in readable, why)
        return list(found.values())

    def find(self, volume, backup_id):
        return next(b for b in self.backups() if b["volume"] == volume and b["backup_id"] == backup_id)

    def restore(self, volume, backup_id, output):
        manifest = self.find(volume, backup_id)
        need(1 <= manifest["size_bytes"], "a volume of no bytes")
        self.write(manifest["size_bytes"], manifest["map"], output)

    def attachment(self, volume, backup_id, name, output):
        found = self.find(volume, backup_id).get("attachments", [])
        names = [a["name"] for a in found]
        need(names == sorted(set(names)) and len(names) <= 16, "attachments: order or number")
        attachment = found[names.index(name)]
        size, where = attachment["size_bytes"], attachment["map"]
        need(0 <= size <= 1 << 30, "attachment: size")
        if size == 0:
            need(where == {"depth": 1, "root": None}, "attachment: a map of nothing")
            Path(output).write_bytes(b"")
        else:
            self.write(size, where, output)

    def write(self, size, where, output):
        """The bytes of a map, into a file."""
        depth, root = where["depth"], where["root"]
        chunks = -(-size // self.chunk)
        need(depth >= 1 and self.fanout ** depth >= chunks and (depth == 1 or self.fanout ** (depth - 1) < chunks), "depth")
        if root is not None:
            where = tuple(bytes.fromhex(v) if isinstance(v, str) else v for v in
                          (root[k] for k in ("pack", "entry", "offset", "stored_len", "index")))
            root = (bytes.fromhex(root["id"]), where)
        with open(output, "wb") as out:
            out.truncate(size)
            for number, (chunk_id, location) in self.leaves(root, depth - 1, 0):
                need(number < chunks, "chunk beyond the volume")
                (count, plain), index = self.read_entry(location, 1)
                need(count == -(-len(plain) // self.chunk), "entry count")
                chunk = plain[index * self.chunk:(index + 1) * self.chunk]
                need(len(chunk) == min(self.chunk, size - number * self.chunk), f"length of chunk {number}")
                need(keyed(self.chunk_key, chunk) == chunk_id, f"id of chunk {number}")
                out.seek(number * self.chunk)
                out.write(chunk)


def check_pack(raw, name):
    """What anyone can check without a key."""
    need(raw[:8] == b"MVRPACK1" and raw[16:48].hex() == name, f"{name}: header")
    tail = raw[-64:]
    need(tail[24:32] == b"MVRPACKE" and int.from_bytes(tail[16:24], "little") == len(raw), f"{name}: trailer")
    hashed = xxhash.xxh3_128_intdigest(raw[:-32]).to_bytes(16, "little")
    need(tail[32:] == hashed + bytes(16), f"{name}: hash")


def check_vectors(document):
    """Computes each row of the last section's table from those that are given."""
    section = document[document.index("## 15. "):]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| ") and "`" in line]
    v = {name.strip(): bytes.fromhex(value.strip(" `")) for name, value in rows}
    repo = Repository.__new__(Repository)
    for name in ("chunk id", "page id", "data", "metadata", "segment", "format"):
        row = (name.replace(" id", "-id") if "id" in name else name) + " key"
        need(derive(f"mover repository v1 {name}", v["master key"]) == v[row], row)
    file_row = "wrapping key of a key file with the master key's bytes"
    need(derive("mover repository v1 key file", v["master key"]) == v[file_row], file_row)
    repo.chunk_key, repo.page_key, repo.data_key = v["chunk-id key"], v["page-id key"], v["data key"]
    repo.fanout = 16
    need(keyed(repo.chunk_key, v["chunk"]) == v["chunk id"], "chunk id")
    need(keyed(repo.data_key, b"pack" + v["pack id"]) == v["pack key"], "pack key")
    for repo.seal in (1, 0):
        raw = v[f"entry at offset 64, seal {repo.seal}"]
        need(repo.entry(v["pack id"], 1, 64, len(raw), raw) == (1, v["chunk"]), f"entry, seal {repo.seal}")
    repo.read_entry = lambda location, kind: ((1, v["page"]), 0)
    stored_len = len(v["entry at offset 64, seal 1"])
    children = [None, (v["chunk id"], (v["pack id"], 0, 64, stored_len, 0))]
    need(repo.page(v["page id"], None, 0) == children, "page")
    need(keyed(v["metadata key"], v["salt"]) == v["record key"], "record key")
    key = "damaged/000102030405060708090a0b0c0d0e0f"
    _, check = repo.record_parts(v["record, seal 1"], b"MVRDAMG1", key, v["repository id"])
    need(check(v["metadata key"], 1) == v["record body"], "record")
    need(repo.last_salt == v["salt"], "salt")
    return len(v)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("repository")
    p.add_argument("--key-file")
    p.add_argument("--password")
    p.add_argument("command", choices=["list", "restore", "attachment", "check-packs", "check-vectors"])
    p.add_argument("rest", nargs="*")
    a = p.parse_args()
    try:
        if a.command == "check-packs":
            packs = sorted(Path(a.repository).glob("packs/*/*"))
            for path in packs:
                check_pack(path.read_bytes(), path.name)
            print(len(packs))
            return
        if a.command == "check-vectors":
            print(check_vectors(Path(a.repository).read_text()))
            return
        repo = Repository(a.repository, a.key_file, a.password)
        if a.command == "list":
            for b in repo.backups():
                print(json.dumps(b, sort_keys=True))
        elif a.command == "restore":
            repo.restore(*a.rest)
        else:
            repo.attachment(*a.rest)
    except Refused as e:
        sys.exit(f"refused: {e}")


if __name__ == "__main__":
    os.umask(0o077)
    main()
