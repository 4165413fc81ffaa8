"""The tools, and how each is asked to make a store, to put a volume into it, and to get one out.

A tool is a class with `init`, `put` and `get`, which give shell commands. `Place` says where things
are. Each command is run by `bash -o pipefail -c`. What a tool cannot do it does not define.
"""
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

DD = "dd bs=4M status=none iflag=direct"
DD_OUT = "dd bs=4M status=none iflag=fullblock oflag=direct of="


@dataclass(frozen=True)
class Place:
    """Where one tool works: everything below `work` goes afterwards."""

    work: Path
    lists: Path  # changed-block and allocated lists of the volumes

    @property
    def repo(self):
        return self.work / "repo"

    @property
    def key(self):
        return self.work / "key"

    @property
    def cache(self):
        return self.work / "cache"

    def environment(self):
        """For all tools alike: passphrases, caches, and no questions."""
        cache = str(self.cache)
        return os.environ | {
            "RESTIC_PASSWORD": "lab",
            "RESTIC_CACHE_DIR": cache,
            "RUSTIC_PASSWORD": "lab",
            "RUSTIC_CACHE_DIR": cache,
            "RUSTIC_NO_PROGRESS": "true",
            "BORG_BASE_DIR": cache,
            "BORG_PASSPHRASE": "lab",
            "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
            "BORG_RELOCATED_REPO_ACCESS_IS_OK": "yes",
            "KOPIA_PASSWORD": "lab",
            "KOPIA_CHECK_FOR_UPDATES": "false",
            "XDG_CACHE_HOME": cache,
        }


class Tool:
    """Defaults: a plain directory as the store, every volume, every operation."""

    program = ""
    # our own form, a bound of the machine, or another tool
    role = "peer"
    volumes = ("v1", "v2", "v3")
    # keeps an earlier state apart from the next one, so that an increment means something
    increments = True
    # whether chunks have a fixed size, as ours: what a store's size is compared with
    fixed_chunks = False

    @property
    def binary(self):
        """`MOVER=/path/to/mover` and the like name another binary."""
        variable = self.program.upper().replace("-", "_")
        return os.environ.get(variable, self.program)

    def is_installed(self):
        return shutil.which(self.binary) is not None

    def init(self, p):
        return f"mkdir -p {p.repo}"

    def put(self, p, device, name):
        raise NotImplementedError

    def get(self, p, name, target, directory):
        """Onto the device `target`, or as `vol.img` in `directory`."""
        return None


class Mover(Tool):
    """Encryption on, with a key file: a passphrase's Argon2 would be what is measured."""

    program, role, fixed_chunks = "mover", "own", True

    def __init__(self, backup="", both="", init="", by_list=True, allocated=False):
        self.backup_flags, self.both_flags, self.init_flags = backup, both, init
        self.by_list, self.allocated = by_list, allocated
        if allocated:
            self.volumes = ("v3",)

    def at(self, p):
        return f"--repo file://{p.repo} --key-file {p.key} --scratch {p.cache} {self.both_flags}"

    def init(self, p):
        flags = self.init_flags
        return f"{self.binary} init -q --repo file://{p.repo} --new-key-file {p.key} {flags}"

    def put(self, p, device, name):
        lists = ""
        if name == "v1p" and self.by_list:
            lists = f"--base-snapshot v1 --changed-blocks {p.lists}/v1p.changed.json"
        if self.allocated:
            lists = f"--changed-blocks {p.lists}/{name}.allocated.json"
            lists += " --changed-blocks-kind allocated"
        what = f"--volume v --snapshot {name} {lists} {self.backup_flags}"
        return f"{self.binary} backup -q {self.at(p)} {what} {device}"

    def get(self, p, name, target, directory):
        return f"{self.binary} restore -q {self.at(p)} --force v@latest {target}"


class Limits(Tool):
    """`limits/`: the steps that nobody can leave out, with encryption and flush; no increments."""

    program, role, increments = "limits", "bound", False

    def __init__(self, by_list=False):
        self.by_list = by_list
        if by_list:
            self.volumes = ("v3",)

    def put(self, p, device, name):
        flags = os.environ.get("LIMITS_ARGS", "--chunk 1024 --level 1 --threads 3 --aead")
        if self.by_list:
            flags += f" --extents {p.lists}/{name}.allocated.json"
        return f"{self.binary} backup {device} {p.repo}/{name} --flush {flags}"

    def get(self, p, name, target, directory):
        return f"{self.binary} restore {p.repo}/{name} {target} --threads 3 --flush"


class Copy(Tool):
    """dd: the device into the store, or into nothing."""

    program, role, increments = "dd", "bound", False

    def __init__(self, into_store):
        self.into_store = into_store
        if into_store:
            # the others have holes, and a copy would fill a store in memory with them
            self.volumes = ("v2",)

    def put(self, p, device, name):
        return f"{DD} if={device} of={p.repo / name if self.into_store else '/dev/null'}"


class Zstd(Tool):
    """One compressed file: nothing is shared between two states."""

    program, increments = "zstd", False

    def put(self, p, device, name):
        return f"{DD} if={device} | {self.binary} -q -1 -T2 > {p.repo}/{name}.zst"

    def get(self, p, name, target, directory):
        return f"{self.binary} -q -dc {p.repo}/{name}.zst | {DD_OUT}{target}"


class QemuImg(Tool):
    program, increments = "qemu-img", False

    def put(self, p, device, name):
        how = "-c -o compression_type=zstd -m 2 -W"
        to = f"{p.repo}/{name}.qcow2"
        return f"{self.binary} convert -q -f raw -T none -O qcow2 {how} {device} {to}"

    def get(self, p, name, target, directory):
        how = "-n -t none -m 2 -W --target-is-zero"
        return f"{self.binary} convert -q -f qcow2 -O raw {how} {p.repo}/{name}.qcow2 {target}"


class Restic(Tool):
    program = "restic"

    def __init__(self, compression="auto"):
        self.compression = compression

    def init(self, p):
        return f"{self.binary} -q -r {p.repo} init"

    def put(self, p, device, name):
        how = f"--compression {self.compression} backup --stdin --stdin-filename vol.img"
        return f"cat {device} | {self.binary} -q -r {p.repo} {how} --tag {name}"

    def get(self, p, name, target, directory):
        how = f"restore latest --tag {name} --sparse --target {directory}"
        return f"{self.binary} -q -r {p.repo} {how}"


class Rustic(Tool):
    """Without `--force` a second stdin of the same name counts as unchanged: nothing is stored."""

    program = "rustic"

    def __init__(self, init="", fixed_chunks=False):
        self.init_flags, self.fixed_chunks = init, fixed_chunks

    def init(self, p):
        return f"{self.binary} -r {p.repo} init {self.init_flags}"

    def put(self, p, device, name):
        how = f"backup --stdin-filename vol.img --force --tag {name} -"
        return f"cat {device} | {self.binary} -r {p.repo} {how}"

    def get(self, p, name, target, directory):
        how = f"restore latest --sparse by-content --filter-tags {name} {directory}"
        return f"{self.binary} -r {p.repo} {how}"


class Borg(Tool):
    program = "borg"

    def __init__(self, encryption="none", chunker=""):
        self.encryption = encryption
        self.chunker = f"--chunker-params {chunker}" if chunker else ""
        self.fixed_chunks = chunker.startswith("fixed")

    def init(self, p):
        return f"{self.binary} init -e {self.encryption} {p.repo}"

    def put(self, p, device, name):
        how = f"--read-special --compression zstd,1 {self.chunker}"
        return f"{self.binary} create {how} {p.repo}::{name} {device}"

    def get(self, p, name, target, directory):
        return f"{self.binary} extract --stdout {p.repo}::{name} | {DD_OUT}{target}"


class Bupstash(Tool):
    program = "bupstash"

    def init(self, p):
        return f"{self.binary} init -r {p.repo} && {self.binary} new-key -o {p.key}"

    def put(self, p, device, name):
        how = f"put -q -k {p.key} -r {p.repo} --compression zstd:1 name={name} -"
        return f"cat {device} | {self.binary} {how}"

    def get(self, p, name, target, directory):
        how = f"get -q -k {p.key} -r {p.repo} name={name}"
        return f"{self.binary} {how} | {DD_OUT}{target}"


class Kopia(Tool):
    """The release that Velero has, fed by a pipe, with its least compression; by default it has none."""

    program = "kopia"

    def at(self, p):
        return f"{self.binary} --config-file={p.work}/kopia.config --log-dir={p.work}/log"

    def init(self, p):
        where = f"--path={p.repo} --cache-directory={p.cache}"
        policy = "--global --compression=zstd-fastest"
        make = f"mkdir -p {p.repo} && {self.at(p)} repository create filesystem {where}"
        return f"{make} && {self.at(p)} policy set {policy}"

    def put(self, p, device, name):
        how = f"--stdin-file=vol.img v --tags=name:{name} --no-progress"
        return f"cat {device} | {self.at(p)} snapshot create {how}"

    def get(self, p, name, target, directory):
        listed = f"{self.at(p)} snapshot list --all --json --tags=name:{name}"
        root = f"$({listed} | jq -r '.[-1].rootEntry.obj')"
        return f"{self.at(p)} show {root}/vol.img | {DD_OUT}{target}"


class Desync(Tool):
    program = "desync"

    def init(self, p):
        return f"mkdir -p {p.repo}/store"

    def put(self, p, device, name):
        how = f"make -n 2 -m 64:256:1024 -s {p.repo}/store"
        return f"{self.binary} {how} {p.repo}/{name}.caibx {device}"

    def get(self, p, name, target, directory):
        how = f"extract -n 4 -s {p.repo}/store"
        return f"{self.binary} {how} {p.repo}/{name}.caibx {directory}/vol.img"


ZSTD_1 = "--compression zstd:1"
FIXED_1M = "--set-compression 1 --set-chunker fixed_size --set-chunk-size 1MiB"

TOOLS = {
    "mover": Mover(),
    "mover-nolist": Mover(by_list=False),
    "mover-zstd1": Mover(backup=ZSTD_1),
    "mover-zstd1-nolist": Mover(backup=ZSTD_1, by_list=False),
    "mover-blocking": Mover(backup=ZSTD_1, both="--engine blocking"),
    "mover-raw": Mover(backup="--compression none"),
    "mover-plain": Mover(backup=ZSTD_1, init="--encryption none"),
    "mover-128m": Mover(backup=ZSTD_1, both="--memory 128MiB"),
    "mover-allocated": Mover(allocated=True),
    "limits": Limits(),
    "limits-allocated": Limits(by_list=True),
    "dd-copy": Copy(into_store=True),
    "dd-read": Copy(into_store=False),
    "zstd": Zstd(),
    "qemu-img": QemuImg(),
    "restic": Restic(),
    "restic-fastest": Restic("fastest"),
    "rustic": Rustic(),
    "rustic-l1": Rustic("--set-compression 1"),
    "rustic-fixed": Rustic(FIXED_1M, fixed_chunks=True),
    "borg-fixed1m": Borg(chunker="fixed,1048576"),
    "borg-fixed4m": Borg(chunker="fixed,4194304"),
    "borg-cdc": Borg(),
    "borg-fixed1m-blake2": Borg("repokey-blake2", "fixed,1048576"),
    "bupstash": Bupstash(),
    "desync": Desync(),
    "kopia": Kopia(),
}
