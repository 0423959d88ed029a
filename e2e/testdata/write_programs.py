"""Repeats the system calls by which programs write checkpoints and downloads, in the current directory.

Each function is named for what it repeats. What it prints is the same on any file system.
"""
import fcntl
import mmap
import os
import random
import shutil


def data(n, seed):
    return random.Random(seed).randbytes(n)


def safetensors():
    """safetensors 0.8 (Rust, tempfile): a sibling with mode 0600, set to its size, chmod, renamed over what is mapped."""
    for seed in 1, 2:
        tmp, final = ".tmpQ%dx9Zk" % seed, "model.safetensors"
        fd = os.open(tmp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        body = data(3 << 20, seed)
        os.ftruncate(fd, len(body))
        for off in range(0, len(body), 1 << 18):
            os.pwrite(fd, body[off:off + (1 << 18)], off)
        os.fsync(fd)
        os.fchmod(fd, 0o644)
        old = None
        if os.path.exists(final):
            with open(final, "rb") as f:
                old = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        os.rename(tmp, final)
        if old is not None:
            print("mapped before", old[:] == data(3 << 20, seed - 1))
        os.close(fd)
        with open(final, "rb") as f:
            print("saved", f.read() == body, os.path.exists(tmp))


def distributed_checkpoint():
    """torch.distributed.checkpoint: each rank's file, and .metadata by a temporary name, last."""
    os.mkdir("dcp")
    for rank in range(3):
        with open("dcp/__%d_0.distcp" % rank, "wb") as f:
            f.write(data(200_000, rank))
            f.flush()
            os.fsync(f.fileno())
    with open("dcp/.metadata.tmp", "wb") as f:
        f.write(b"metadata")
        os.fsync(f.fileno())
    os.rename("dcp/.metadata.tmp", "dcp/.metadata")
    print(sorted(os.listdir("dcp")))


def trainer():
    """transformers' Trainer: a directory that is renamed once all is in it."""
    os.makedirs("tmp-checkpoint-500/global_step500")
    for name in "config.json", "global_step500/rng.pth", "trainer_state.json":
        with open("tmp-checkpoint-500/" + name, "w") as f:
            f.write(name)
    os.rename("tmp-checkpoint-500", "checkpoint-500")
    fd = os.open("checkpoint-500", os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    for root, dirs, files in sorted(os.walk("checkpoint-500")):
        print(root, sorted(dirs), sorted(files))
    print(open("checkpoint-500/global_step500/rng.pth").read())


def orbax():
    """Orbax: a directory with the time in its name, a file that says that all is there."""
    tmp = "step_10.orbax-checkpoint-tmp-1700000000"
    os.mkdir(tmp)
    for name in "d0", "manifest", "_CHECKPOINT_METADATA", "commit_success.txt":
        with open(os.path.join(tmp, name), "wb") as f:
            f.write(name.encode() * 1000)
    os.rename(tmp, "step_10")
    print(sorted(os.listdir("step_10")), os.path.exists(tmp))


def huggingface_hub():
    """huggingface_hub: a lock beside, a file that grows under .incomplete and is moved."""
    os.makedirs("blobs", exist_ok=True)
    lock = os.open("blobs/sha.lock", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for part in range(4):
        with open("blobs/sha.incomplete", "ab") as f:
            f.seek(0, os.SEEK_END)
            f.write(data(100_000, part))
    shutil.move("blobs/sha.incomplete", "blobs/sha")
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)
    os.unlink("blobs/sha.lock")
    print(sorted(os.listdir("blobs")), os.path.getsize("blobs/sha"))


def replaced_while_open():
    """Any program that goes on reading a file that another one replaces."""
    with open("state.json", "w") as f:
        f.write("old")
    kept = open("state.json", buffering=1)
    first = os.pread(kept.fileno(), 1, 0).decode()
    with open("state.json.tmp", "w") as f:
        f.write("new")
    os.replace("state.json.tmp", "state.json")
    print(first, kept.read(), open("state.json").read())


def renamed_while_written():
    """Log rotation: the writer goes on under the new name."""
    f = open("app.log", "w")
    f.write("one\n")
    f.flush()
    os.rename("app.log", "app.log.1")
    f.write("two\n")
    f.close()
    print(open("app.log.1").read().split(), os.path.exists("app.log"))


def moved_about():
    """Renames of files that are whole."""
    with open("a", "w") as f:
        f.write("a")
    with open("b", "w") as f:
        f.write("b")
    os.rename("a", "c")
    os.replace("b", "c")
    os.mkdir("sub")
    os.rename("c", "sub/c")
    print(open("sub/c").read(), sorted(n for n in os.listdir(".") if len(n) == 1))
    for name, to in ("sub/none", "x"), ("sub/c", "none/x"):
        try:
            os.rename(name, to)
        except OSError as err:
            print(name, err.strerror)


for program in (safetensors, distributed_checkpoint, trainer, orbax, huggingface_hub, replaced_while_open,
                renamed_while_written, moved_about):
    print(program.__name__)
    program()
