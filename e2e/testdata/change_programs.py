"""Repeats the system calls by which programs change files that are there, in the current directory.

Each function is named for what it repeats. What it prints is the same on any file system.
"""
import hashlib
import mmap
import os
import random
import sqlite3


def digest(name):
    with open(name, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()[:16]


def event_file():
    """TensorBoard's writer: the file is opened again for each flush, and appended to."""
    name = "events.out.tfevents.1700000000.host"
    with open(name, "wb") as f:
        f.write(b"header")
    for step in range(20):
        with open(name, "ab") as f:
            f.write(b"%08d" % step * 100)
    print(os.path.getsize(name), digest(name))


def random_writes():
    """fio: writes of a file that is there, at random places, and reads in between."""
    rng = random.Random(1)
    size = 24_000_000
    with open("disk", "wb") as f:
        f.write(rng.randbytes(size))
    with open("disk", "r+b", buffering=0) as f:
        for i in range(300):
            off, n = rng.randrange(size), rng.randrange(1, 9000)
            os.pwrite(f.fileno(), rng.randbytes(n), off)
            off = rng.randrange(size)
            if i % 10 == 0:
                print(hashlib.sha256(os.pread(f.fileno(), 200_000, off)).hexdigest()[:8])
            if i % 100 == 50:
                os.fsync(f.fileno())
    print(os.path.getsize("disk"), digest("disk"))


def mapped():
    """numpy.memmap, h5py: a file that is there is changed by a mapping."""
    with open("map", "wb") as f:
        f.write(bytes(range(256)) * 4000)
    with open("map", "r+b") as f:
        m = mmap.mmap(f.fileno(), 0)
        for off in 0, 70_000, 999_999:
            m[off:off + 5] = b"HELLO"
        m.flush()
        print(m[69_998:70_007])
        m.close()
    print(digest("map"))


def database():
    """sqlite3: pages of a database are changed, with a journal that comes and goes."""
    for turn in range(3):
        db = sqlite3.connect("db.sqlite")
        db.execute("create table if not exists t (id integer primary key, text)")
        db.executemany("insert into t (text) values (?)", [("row %d of %d" % (i, turn) * 20,) for i in range(500)])
        db.commit()
        db.execute("update t set text = 'changed' where id % 7 = ?", (turn,))
        db.commit()
        print(db.execute("select count(*), sum(length(text)) from t").fetchone())
        db.close()
    db = sqlite3.connect("db.sqlite")
    print(db.execute("pragma integrity_check").fetchone())
    db.execute("delete from t where id % 2 = 0")
    db.commit()
    db.execute("vacuum")
    print(db.execute("select count(*) from t").fetchone())
    db.close()
    print(sorted(n for n in os.listdir(".") if n.startswith("db")))
    os.remove("db.sqlite")  # it has the time in it


def shrunk_and_grown():
    """An archive that is rewritten in place: cut, and longer again."""
    with open("arc", "wb") as f:
        f.write(os.urandom(0) + b"abc" * 3_000_000)
    with open("arc", "r+b") as f:
        f.truncate(1_000_000)
        f.seek(0, os.SEEK_END)
        f.write(b"index")
        f.truncate(9_500_000)
        f.seek(5)
        f.write(b"head")
    print(os.path.getsize("arc"), digest("arc"))


for program in event_file, random_writes, mapped, database, shrunk_and_grown:
    print(program.__name__)
    program()
