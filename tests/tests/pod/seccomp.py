"""Tries system calls in children and prints, as JSON, the error number of each: 0 if it returned
without one, null if the child ended in it. Reads {name: [number, argument, ...]} as its argument."""

import ctypes
import json
import os
import signal
import sys

libc = ctypes.CDLL(None, use_errno=True)


def attempt(number, arguments):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        # some wait for ever
        signal.alarm(1)
        ctypes.set_errno(0)
        result = libc.syscall(*(ctypes.c_long(value) for value in [number, *arguments]))
        errno = ctypes.get_errno() if result == -1 else 0
        os.write(write, f"{errno} ".encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 64)
    os.close(read)
    os.waitpid(child, 0)
    return int(said.split()[0]) if said else None


calls = json.loads(sys.argv[1])
print(json.dumps({name: attempt(call[0], call[1:]) for name, call in calls.items()}))
