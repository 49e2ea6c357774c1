"""The metadata store as a killed run leaves it."""

import subprocess
import sys
from pathlib import Path

from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto import metadata_store_pb2 as mlmd

from pipeline.runs import store

# More than fits into the cache: SQLite writes to the file before the end of the transaction.
KILLED_WHILE_IT_WRITES = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("CREATE TABLE half_written (text)")
for _ in range(2000):
    connection.execute("INSERT INTO half_written VALUES (?)", ("x" * 2000,))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_left_half_written_is_rolled_back(tmp_path: Path):
    config = mlmd.ConnectionConfig()
    config.sqlite.filename_uri = str(tmp_path / store.FILE)
    MetadataStore(config).put_context_type(mlmd.ContextType(name="pipeline_run"))
    subprocess.run([sys.executable, "-c", KILLED_WHILE_IT_WRITES, str(tmp_path / store.FILE)], check=False)
    assert (tmp_path / f"{store.FILE}-journal").stat().st_size
    store.check(tmp_path)
    with store.opened(tmp_path) as opened:
        assert [kind.name for kind in opened.get_context_types()] == ["pipeline_run"]
    assert not (tmp_path / f"{store.FILE}-journal").exists()
